import { describe, expect, test } from 'vitest'
import type { Pod } from './objects.js'
import { type Facts, nodeState, observedPod, ownNames, wantsLog } from './observed-pod.js'

const BORN = '2026-12-01T00:00:00Z'
const NAMES = { pod: 'cpu-1', generation: 2 }

function pod(status: Pod['status'] = {}, change: { meta?: object; spec?: object } = {}): Pod {
  return {
    metadata: {
      name: 'cpu-1-g2',
      uid: 'u',
      resourceVersion: '1',
      creationTimestamp: BORN,
      labels: { 'firepool.dev/pool': 'cpu', 'firepool.dev/generation': '2' },
      annotations: { 'firepool.dev/pod': 'cpu-1', 'firepool.dev/start-timeout-ms': '60000' },
      ...change.meta,
    },
    spec: { nodeName: 'n1', ...change.spec },
    status,
  }
}

function see(of: Pod, facts: Partial<Facts> = {}, ageMs = 1_000) {
  const base: Facts = {
    node: 'fine',
    identity: undefined,
    serverNowMs: Date.parse(BORN) + ageMs,
    log: undefined,
  }
  return observedPod(of, NAMES, { ...base, ...facts })
}

const runner = (state: object, more: object = {}) => ({
  containerStatuses: [{ name: 'runner', restartCount: 0, state, ...more }],
})
const READY: Pod['status'] = {
  phase: 'Running',
  podIP: '10.0.0.9',
  conditions: [{ type: 'Ready', status: 'True' }],
}
const known = { kind: 'known', address: 'http://10.0.0.9:47100', incarnation: 'i1' } as const

test('a pod knows its name, pool and generation; one without them is nobody', () => {
  expect(ownNames(pod())).toEqual({ pod: 'cpu-1', pool: 'cpu', generation: 2 })
  expect(ownNames(pod({}, { meta: { annotations: {} } }))).toBeUndefined()
})

describe('starting', () => {
  test('a node without the node agent is named at once, with what to do, and as the reason of its failure', () => {
    const pending = pod({ phase: 'Pending' })
    const seatMount =
      'MountVolume.SetUp failed for volume "firepool-seat" : driver name node.firepool.dev not found'
    const waits = see(pending, { seatMount })
    expect(waits).toMatchObject({ phase: 'starting', reason: 'NodeAgentMissing' })
    expect(waits.message).toMatch(
      /^node n1 cannot .*install the node agent on the GPU nodes.*driver name node\.firepool\.dev not found$/,
    )
    expect(see(pending, { seatMount }, 61_000)).toMatchObject({ phase: 'failed', reason: 'NodeAgentMissing' })
  })

  test('with nothing to say', () => {
    expect(see(pod({ phase: 'Pending' }))).toEqual({ ...NAMES, phase: 'starting' })
    // Ready for the kubelet, but this worker has not asked the runner who it is.
    expect(see(pod(READY))).toEqual({ ...NAMES, phase: 'starting' })
  })

  test.each([
    ['Unschedulable', '0/3 nodes are available: 3 Insufficient cpu.'],
    ['SchedulingGated', 'Scheduling is blocked due to non-empty scheduling gates'],
  ])('%s at once, and as the reason of its failure when its time is over', (reason, message) => {
    const waits = pod({
      phase: 'Pending',
      conditions: [{ type: 'PodScheduled', status: 'False', reason, message }],
    })
    expect(see(waits)).toEqual({ ...NAMES, phase: 'starting', reason, message })
    const late = see(waits, {}, 60_001)
    expect(late).toMatchObject({ phase: 'failed', reason })
    expect(late.message).toContain(`not ready within 60000 ms of its start: ${message}`)
  })

  test('StartTimeout when nobody says why', () => {
    expect(see(pod({ phase: 'Running' }), {}, 60_001)).toMatchObject({
      phase: 'failed',
      reason: 'StartTimeout',
    })
  })

  test('a ready pod that this worker does not reach says so, and fails when its time is over', () => {
    const silent = { identity: { kind: 'silent', why: 'ETIMEDOUT' } } as const
    expect(see(pod(READY), silent)).toMatchObject({ phase: 'starting', reason: 'RunnerUnreachable' })
    expect(see(pod(READY), silent, 60_001)).toMatchObject({ phase: 'failed', reason: 'RunnerUnreachable' })
  })

  test.each([
    'ErrImagePull',
    'ImagePullBackOff',
    'InvalidImageName',
    'CreateContainerConfigError',
    'CrashLoopBackOff',
    'RunContainerError',
  ])('%s fails at once', (reason) => {
    const state = { waiting: { reason, message: `it was ${reason}` } }
    expect(see(pod({ phase: 'Pending', ...runner(state) }))).toMatchObject({ phase: 'failed', reason })
    expect(
      see(pod({ phase: 'Pending', initContainerStatuses: runner(state).containerStatuses })),
    ).toMatchObject({
      phase: 'failed',
      reason,
    })
  })

  test.each(['ContainerCreating', 'PodInitializing'])('%s is only time', (reason) => {
    expect(see(pod({ phase: 'Pending', ...runner({ waiting: { reason } }) }))).toEqual({
      ...NAMES,
      phase: 'starting',
    })
  })
})

describe('ready', () => {
  test('with the address and the incarnation that the runner told', () => {
    expect(see(pod(READY), { identity: known })).toEqual({
      ...NAMES,
      phase: 'ready',
      address: known.address,
      incarnation: 'i1',
    })
  })

  test.each([
    ['cordoned', 'NodeCordoned'],
    ['notReady', 'NodeNotReady'],
  ] as const)('on a node that is %s: nobody new gets it', (node, retire) => {
    expect(see(pod(READY), { identity: known, node })).toMatchObject({ phase: 'ready', retire })
  })

  test('a probe that fails takes no job from it', () => {
    const unready: Pod['status'] = { ...READY, conditions: [{ type: 'Ready', status: 'False' }] }
    expect(see(pod(unready), { identity: known })).toMatchObject({ phase: 'ready', retire: 'NotReady' })
  })

  test('a runner of another version fails by that name', () => {
    expect(see(pod(READY), { identity: { kind: 'otherVersion', v: 2 } })).toMatchObject({
      phase: 'failed',
      reason: 'ContractVersion',
    })
  })

  test('a pod without rights to look at nodes is as good', () => {
    expect(see(pod(READY), { identity: known, node: 'unknown' })).toMatchObject({ phase: 'ready' })
  })
})

describe('ended', () => {
  const over = (terminated: object, more: object = {}) =>
    pod({ phase: 'Failed', ...runner({ terminated: { exitCode: 1, ...terminated } }), ...more })

  test('OOMKilled, with a remedy', () => {
    const seen = see(over({ exitCode: 137, reason: 'OOMKilled', message: 'last words' }), { identity: known })
    expect(seen).toMatchObject({ phase: 'failed', reason: 'OOMKilled' })
    expect(seen.message).toMatch(/exit code 137; raise its limit of memory.*last words/)
  })

  test('what the runner wrote of its own failure', () => {
    const message = JSON.stringify({ v: 1, reason: 'PrepareFailed', message: 'pip exited with 1' })
    expect(see(over({ reason: 'Error', message }))).toMatchObject({
      reason: 'PrepareFailed',
      message: 'pip exited with 1',
    })
  })

  test('Exited, with the end of its log wherever it is kept', () => {
    expect(see(over({ reason: 'Error', message: '{not json' })).message).toContain('{not json')
    expect(wantsLog(over({ reason: 'Error' }))).toBe(true)
    expect(wantsLog(over({ reason: 'Error', message: 'x' }))).toBe(false)
    const seen = see(over({ reason: 'Error' }), { log: 'stack trace' })
    expect(seen).toMatchObject({ reason: 'Exited' })
    expect(seen.message).toMatch(/ended with exit code 1; end of its log: stack trace/)
  })

  test('the runner ended, though a sidecar runs on', () => {
    const seen = pod({ phase: 'Running', ...runner({ terminated: { exitCode: 0, reason: 'Completed' } }) })
    expect(see(seen, { identity: known })).toMatchObject({ phase: 'failed', reason: 'Exited' })
  })

  test.each([
    ['Evicted', 'The node was low on resource: memory.'],
    ['DeadlineExceeded', 'Pod was active on the node longer than the specified deadline'],
    ['UnexpectedAdmissionError', 'Allocate failed'],
  ])('%s, as the kubelet says it', (reason, message) => {
    expect(see(pod({ phase: 'Failed', reason, message }))).toMatchObject({ phase: 'failed', reason, message })
  })
})

describe('taken away', () => {
  const going = { meta: { deletionTimestamp: '2026-12-01T00:01:00Z' } }
  const gone = (meta: object) => ({ meta: { ...pod().metadata, ...meta } })

  test('deleted by hand', () => {
    expect(see(pod(READY, gone(going.meta)), { identity: known })).toMatchObject({
      phase: 'failed',
      reason: 'Deleted',
    })
  })

  test.each([
    ['PreemptionByScheduler', 'Preempted'],
    ['EvictionByEvictionAPI', 'NodeDrained'],
    ['DeletionByTaintManager', 'NodeTainted'],
    ['DeletionByPodGC', 'NodeLost'],
    ['SomethingNew', 'SomethingNew'],
  ])('by the cluster: %s is %s', (reason, said) => {
    const conditions = [{ type: 'DisruptionTarget', status: 'True', reason, message: 'because' } as const]
    const seen = see(pod({ ...READY, conditions }, gone(going.meta)), { identity: known })
    expect(seen).toMatchObject({ phase: 'failed', reason: said, message: 'because' })
  })

  test('NodeLost while its node is silent; once its end is wanted nobody is there to end it', () => {
    expect(see(pod(READY), { identity: known, node: 'lost' })).toMatchObject({
      phase: 'failed',
      reason: 'NodeLost',
    })
    expect(see(pod(READY, gone(going.meta)), { node: 'lost' })).toEqual({ ...NAMES, phase: 'gone' })
    // Not bound yet: no node is lost.
    expect(see(pod({ phase: 'Pending' }, { spec: { nodeName: undefined } }), { node: 'lost' })).toMatchObject(
      {
        phase: 'starting',
      },
    )
  })
})

test('a node: fine, cordoned, not ready or lost', () => {
  const node = (status: 'True' | 'False' | 'Unknown', unschedulable = false) => ({
    metadata: { name: 'n', uid: 'u', resourceVersion: '1' },
    spec: { unschedulable },
    status: { conditions: [{ type: 'Ready', status }] },
  })
  expect(nodeState(node('True'))).toBe('fine')
  expect(nodeState(node('True', true))).toBe('cordoned')
  expect(nodeState(node('False', true))).toBe('notReady')
  expect(nodeState(node('Unknown'))).toBe('lost')
})
