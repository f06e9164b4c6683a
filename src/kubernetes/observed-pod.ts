import { CONTRACT_VERSION, type ObservedPod, type RunnerFailed } from '../contract/index.js'
import { ANNOTATION, LABEL } from './names.js'
import { type ContainerStatus, conditionOf, type Node, type Pod } from './objects.js'
import { INSTALL_AGENT } from './shares/installed.js'

/** What is known of a pod's node. `unknown`: this worker may not look at nodes, or has not yet. */
export type NodeState = 'fine' | 'cordoned' | 'notReady' | 'lost' | 'unknown'

/** Who answers at a pod's address, as far as this worker has asked. */
export type Identity =
  | { kind: 'known'; address: string; incarnation: string; gpus?: readonly string[] }
  | { kind: 'otherVersion'; v: unknown }
  | { kind: 'silent'; why: string }

export interface Facts {
  node: NodeState
  identity: Identity | undefined
  /** on the API server's clock, ms since the epoch: the pod's age is counted on the clock that wrote its birth */
  serverNowMs: number
  /** the end of the runner's log, when it was read for this failure */
  log: string | undefined
  /** why its node cannot mount the node agent's volume, in the kubelet's words */
  seatMount?: string | undefined
}

/** What a kubelet says of a container that will not start by waiting alone. It may try for ever; the pool's breaker does that better. */
const HOPELESS: ReadonlySet<string> = new Set([
  'ErrImagePull',
  'ImagePullBackOff',
  'InvalidImageName',
  'ErrImageNeverPull',
  'ImageInspectError',
  'RegistryUnavailable',
  'SignatureValidationFailed',
  'CrashLoopBackOff',
  'CreateContainerConfigError',
  'CreateContainerError',
  'PreCreateHookError',
  'PreStartHookError',
  'PostStartHookError',
  'RunContainerError',
  'CreatePodSandboxError',
])

/** Why somebody in the cluster ends a pod, by the reason of its condition DisruptionTarget. */
const DISRUPTION: Readonly<Record<string, string>> = {
  PreemptionByScheduler: 'Preempted',
  EvictionByEvictionAPI: 'NodeDrained',
  DeletionByTaintManager: 'NodeTainted',
  DeletionByDeviceTaintManager: 'DeviceTainted',
  DeletionByPodGC: 'NodeLost',
  TerminationByKubelet: 'Evicted',
}

type Verdict = Omit<ObservedPod, 'pod' | 'generation'>

/** Firepool's name of a pod and its pool; undefined for one that lost its labels, which is nobody's. */
export function ownNames(pod: Pod): { pod: string; pool: string; generation: number } | undefined {
  const { labels, annotations } = pod.metadata
  const name = annotations?.[ANNOTATION.pod]
  const pool = labels?.[LABEL.pool]
  if (name === undefined || pool === undefined) return undefined
  return { pod: name, pool, generation: Number(labels?.[LABEL.generation] ?? 0) }
}

/** A pod of the cluster as the pool's workflow is told of it. Pure. */
export function observedPod(pod: Pod, names: { pod: string; generation: number }, facts: Facts): ObservedPod {
  const verdict =
    ended(pod, facts) ?? leaving(pod, facts) ?? lost(pod, facts) ?? hopeless(pod, facts) ?? alive(pod, facts)
  return { pod: names.pod, generation: names.generation, ...verdict }
}

/** What the state of a node means for its pods. */
export function nodeState(node: Node): NodeState {
  const ready = conditionOf(node, 'Ready')?.status
  // Unknown: its kubelet has not been heard of for the cluster's grace period.
  if (ready === 'Unknown') return 'lost'
  if (ready !== 'True') return 'notReady'
  return node.spec?.unschedulable === true ? 'cordoned' : 'fine'
}

/** Whether the log of a pod says more than its status: a container ended, and left no message. */
export function wantsLog(pod: Pod): boolean {
  const { terminated } = endedRunner(pod)?.state ?? {}
  return terminated !== undefined && !terminated.message && terminated.exitCode !== 0
}

function failed(reason: string, message: string): Verdict {
  return { phase: 'failed', reason, message }
}

/** Nothing of it runs any more. */
function ended(pod: Pod, { log }: Facts): Verdict | undefined {
  const phase = pod.status?.phase
  const runner = endedRunner(pod)
  if (phase !== 'Failed' && phase !== 'Succeeded' && runner === undefined) return undefined
  const disruption = disruptionOf(pod)
  if (disruption) return failed(disruption.reason, withLog(disruption.message, log))
  const { reason, message } = pod.status ?? {}
  if (reason) return failed(reason, withLog(message ?? 'the kubelet said no more', log))
  return runner ? exitOf(runner, log) : failed('Exited', withLog('its containers ended', log))
}

/** The container whose end was the pod's: an init container that failed, or the runner. */
function endedRunner(pod: Pod): ContainerStatus | undefined {
  const { initContainerStatuses = [], containerStatuses = [] } = pod.status ?? {}
  const isOver = ({ state }: ContainerStatus) => state?.terminated !== undefined
  return (
    initContainerStatuses.find((status) => isOver(status) && status.state?.terminated?.exitCode !== 0) ??
    containerStatuses.find((status) => isOver(status))
  )
}

function exitOf({ name, state }: ContainerStatus, log: string | undefined): Verdict {
  const { exitCode, signal, reason, message } = state!.terminated!
  const said = runnerFailure(message)
  if (said) return failed(said.reason, said.message)
  const how = signal ? `was ended by signal ${signal}` : `ended with exit code ${exitCode}`
  const tail = message || log
  const text = tail ? `; end of its log: ${tail}` : '; its log is empty'
  // Error and Completed say only that it ended.
  const named = reason && reason !== 'Error' && reason !== 'Completed' ? reason : 'Exited'
  const hint =
    named === 'OOMKilled' ? '; raise its limit of memory in profile.template, or make the jobs smaller' : ''
  return failed(named, `container ${name} ${how}${hint}${text}`)
}

/** What a runner wrote of its own end; anything else is the end of a log. */
function runnerFailure(message: string | undefined): RunnerFailed | undefined {
  if (!message?.startsWith('{')) return undefined
  try {
    const said = JSON.parse(message) as Partial<RunnerFailed>
    if (typeof said.reason !== 'string' || typeof said.message !== 'string') return undefined
    return { v: 1, reason: said.reason, message: said.message }
  } catch {
    return undefined
  }
}

function withLog(message: string, log: string | undefined): string {
  return log ? `${message}; end of its log: ${log}` : message
}

/** Somebody wants its end: it takes no job any more, though it may be there for its grace period. */
function leaving(pod: Pod, { node }: Facts): Verdict | undefined {
  if (pod.metadata.deletionTimestamp === undefined) return undefined
  // Nobody is there to end it; its object stays until the node comes back or is deleted, and it holds nothing that is of use.
  if (node === 'lost' && pod.spec.nodeName !== undefined) return { phase: 'gone' }
  const disruption = disruptionOf(pod)
  if (disruption) return failed(disruption.reason, disruption.message)
  return failed('Deleted', 'somebody deleted it')
}

function disruptionOf(pod: Pod): { reason: string; message: string } | undefined {
  const condition = conditionOf(pod, 'DisruptionTarget')
  if (condition?.status !== 'True') return undefined
  const { reason = '', message = '' } = condition
  return {
    reason: DISRUPTION[reason] ?? (reason || 'Disrupted'),
    message: message || `the cluster ended it (${reason})`,
  }
}

function lost(pod: Pod, { node }: Facts): Verdict | undefined {
  if (node !== 'lost' || pod.spec.nodeName === undefined) return undefined
  return failed('NodeLost', `its node ${pod.spec.nodeName} is not heard of any more, or not in the cluster`)
}

function hopeless(pod: Pod, { log }: Facts): Verdict | undefined {
  const { initContainerStatuses = [], containerStatuses = [] } = pod.status ?? {}
  for (const { name, state, lastState } of [...initContainerStatuses, ...containerStatuses]) {
    const { reason = '', message = '' } = state?.waiting ?? {}
    if (!HOPELESS.has(reason)) continue
    const before = lastState?.terminated
    const exit = before
      ? `; it ended with exit code ${before.exitCode}${before.reason ? ` (${before.reason})` : ''}`
      : ''
    return failed(reason, withLog(`container ${name}: ${message || reason}${exit}`, before?.message || log))
  }
  return undefined
}

function alive(pod: Pod, facts: Facts): Verdict {
  const { identity, node } = facts
  const isReady = conditionOf(pod, 'Ready')?.status === 'True'
  if (identity?.kind === 'otherVersion')
    return failed(
      'ContractVersion',
      `the runner speaks version ${identity.v} of the contract, this worker version ${CONTRACT_VERSION}; use a worker and a pod image of matching versions`,
    )
  if (identity?.kind === 'known') {
    const { address, incarnation } = identity
    const ready: Verdict = { phase: 'ready', address, incarnation }
    if (node === 'cordoned')
      return { ...ready, retire: 'NodeCordoned', message: `node ${pod.spec.nodeName} takes no new pods` }
    if (node === 'notReady')
      return { ...ready, retire: 'NodeNotReady', message: `node ${pod.spec.nodeName} is not ready` }
    if (!isReady) return { ...ready, retire: 'NotReady', message: 'its readiness probe fails' }
    return ready
  }
  const waits = waitOf(pod, isReady ? identity : undefined, facts.seatMount)
  const timeoutMs = Number(pod.metadata.annotations?.[ANNOTATION.startTimeoutMs])
  const ageMs = facts.serverNowMs - Date.parse(pod.metadata.creationTimestamp ?? '')
  if (ageMs > timeoutMs)
    return failed(
      waits?.reason ?? 'StartTimeout',
      `not ready within ${timeoutMs} ms of its start${waits ? `: ${waits.message}` : ''}; raise podStart, or make prepare shorter`,
    )
  return { phase: 'starting', ...waits }
}

/** What a pod that is not ready waits for, when it is more than time. */
function waitOf(
  pod: Pod,
  identity: Identity | undefined,
  seatMount: string | undefined,
): { reason: string; message: string } | undefined {
  const scheduled = conditionOf(pod, 'PodScheduled')
  if (scheduled?.status === 'False' && scheduled.reason) {
    const gates = pod.spec.schedulingGates?.map(({ name }) => name).join(', ')
    const message = scheduled.message || (gates ? `gated by ${gates}` : scheduled.reason)
    return { reason: scheduled.reason, message }
  }
  if (seatMount !== undefined)
    return {
      reason: 'NodeAgentMissing',
      message: `node ${pod.spec.nodeName} cannot give it the node agent's volume; ${INSTALL_AGENT}, or look why the agent there does not run. The kubelet said: ${seatMount}`,
    }
  if (identity?.kind === 'silent')
    return {
      reason: 'RunnerUnreachable',
      message: `it is ready, but this worker does not reach its runner (${identity.why}); look at network policies between worker and pods`,
    }
  return undefined
}
