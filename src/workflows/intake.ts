import type { WorkflowInterceptors } from '@temporalio/workflow'
import { payloadConverter } from './payload-converter.js'

/** Takes the payload of a signal without waiting for anything; false: it is none of its signals. */
type Take = (name: string, payload: unknown) => boolean

let take: Take | null = null

/**
 * Signals go straight to `first` from now on. The SDK's own way makes several promises for each signal, and takes a stack
 * trace at each: 0.8 ms of CPU a signal on two slow cores, ten times of what a pool needs to act on it. In a flood its
 * workflow tasks then lasted so long that more than 100 signals came during each; the server closes such a task by
 * force, and the next one has still more to do.
 */
export function takeSignals(first: Take): void {
  take = first
}

type Jobs = NonNullable<
  Parameters<
    NonNullable<NonNullable<WorkflowInterceptors['internals']>[number]['activate']>
  >[0]['activation']['jobs']
>

/** Leaves the SDK what is left, in order. */
function withoutTaken(jobs: Jobs, takes: Take): Jobs {
  return jobs.filter(({ signalWorkflow: signal }) => {
    if (!signal) return true
    const [payload] = signal.input ?? []
    return !takes(signal.signalName ?? '', payload ? payloadConverter.fromPayload(payload) : undefined)
  })
}

/**
 * A module of workflow interceptors. In the order of an SDK that does not call it nothing changes: a signal only goes
 * into an inbox, and whatever acts on that runs when all jobs of the activation were handed over. An update is another
 * matter, it acts at once: where there is one, all goes the usual way.
 */
export const interceptors = (): WorkflowInterceptors => ({
  internals: [
    {
      activate(input, next) {
        const { jobs } = input.activation
        if (take && jobs?.some((job) => job.signalWorkflow) && !jobs.some((job) => job.doUpdate))
          input.activation.jobs = withoutTaken(jobs, take)
        next(input)
      },
    },
  ],
})
