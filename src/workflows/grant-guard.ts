import { log, type WorkflowInterceptors } from '@temporalio/workflow'
import { SIGNAL } from '../contract/names.js'

type Internals = NonNullable<WorkflowInterceptors['internals']>
type Activate = Parameters<NonNullable<Internals[number]['activate']>>[0]
type Signal = NonNullable<NonNullable<Activate['activation']['jobs']>[number]['signalWorkflow']>

/** What the SDK keeps for a workflow: there for each of its interceptors, and for nobody else by a public name. */
interface Runtime {
  payloadConverter: { fromPayload(payload: unknown): unknown }
  interceptors: { internals: Internals }
}

/**
 * Drops a `firepool.grant` that cannot be decoded. The SDK decodes before a handler runs, and a payload that its
 * converter refuses fails the workflow task again and again (failure F26): the workflow of a user, who asked for nothing but a
 * pod, would stand still for ever. A user's worker need have nothing of Firepool's, so that the library brings this
 * interceptor with it, when it is loaded: before the first signal. Where an SDK keeps its interceptors elsewhere there is
 * no such guard, and nothing else changes.
 */
export function guardGrants(): void {
  const runtime = (globalThis as { __TEMPORAL_ACTIVATOR__?: Partial<Runtime> }).__TEMPORAL_ACTIVATOR__
  const { payloadConverter, interceptors } = runtime ?? {}
  if (!payloadConverter || !Array.isArray(interceptors?.internals)) return
  interceptors.internals.push({
    activate(input, next) {
      const { jobs } = input.activation
      if (jobs?.some(({ signalWorkflow }) => signalWorkflow?.signalName === SIGNAL.grant))
        input.activation.jobs = jobs.filter(
          ({ signalWorkflow }) => !signalWorkflow || !isBroken(signalWorkflow, payloadConverter),
        )
      next(input)
    },
  })
}

function isBroken({ signalName, input }: Signal, converter: Runtime['payloadConverter']): boolean {
  if (signalName !== SIGNAL.grant) return false
  try {
    for (const payload of input ?? []) converter.fromPayload(payload)
    return false
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    log.warn(`a signal ${SIGNAL.grant} cannot be decoded and was dropped: ${reason}`)
    return true
  }
}
