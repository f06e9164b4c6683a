/** Loaded into the callers of the replays: says what the library asks of the server now, whatever the history says. */
import { type Headers, proxySinks, type Sinks, type WorkflowInterceptors } from '@temporalio/workflow'

export interface Command {
  kind: 'child' | 'activity' | 'localActivity'
  /** type of the workflow or the activity */
  type: string
  args: unknown[]
  options: Record<string, unknown>
  /** what the caller's own interceptor had put into the headers */
  trace: string | null
}

interface CommandSinks extends Sinks {
  firepoolTest: { record(command: Command): void }
}

/** The worker's end of it. */
export const commandSinks = (record: (command: Command) => void) => ({
  firepoolTest: { record: { fn: (_: unknown, command: Command) => record(command), callDuringReplay: true } },
})

const TRACE = new TextEncoder().encode('of the caller')

const traced = <I extends { headers: Headers }>(input: I): I => ({
  ...input,
  headers: { ...input.headers, trace: { data: TRACE } },
})

function record(
  kind: Command['kind'],
  type: string,
  input: { args?: unknown[]; options: object; headers: Headers },
) {
  const { firepoolTest } = proxySinks<CommandSinks>()
  const { data } = input.headers.trace ?? {}
  const plain = JSON.parse(JSON.stringify(input)) as { args?: unknown[]; options: Record<string, unknown> }
  const args = plain.args ?? (plain.options.args as unknown[] | undefined) ?? []
  const trace = data ? new TextDecoder().decode(data) : null
  firepoolTest.record({ kind, type, args, options: plain.options, trace })
}

/** The first stands for an interceptor of the caller's own, for example one that traces; the second sees what comes of it. */
export const interceptors = (): WorkflowInterceptors => ({
  outbound: [
    {
      startChildWorkflowExecution: (input, next) => next(traced(input)),
      scheduleActivity: (input, next) => next(traced(input)),
      scheduleLocalActivity: (input, next) => next(traced(input)),
    },
    {
      startChildWorkflowExecution(input, next) {
        record('child', input.workflowType, input)
        return next(input)
      },
      scheduleActivity(input, next) {
        record('activity', input.activityType, input)
        return next(input)
      },
      scheduleLocalActivity(input, next) {
        record('localActivity', input.activityType, input)
        return next(input)
      },
    },
  ],
})
