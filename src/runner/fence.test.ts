import { describe, expect, test } from 'vitest'
import type { BindRequest, JobOutcome, JobRequest } from '../contract/index.js'
import { FENCE_LIMITS, Fence, type FenceLimits } from './fence.js'

const DIGEST = 'a'.repeat(64)
const OTHER_DIGEST = 'b'.repeat(64)

function request(jobId: string, epoch = 1, digest = DIGEST): JobRequest {
  return { v: 1, jobId, digest, epoch, spec: { command: ['true'] } }
}

function bindRequest(epoch: number, changes: Partial<BindRequest> = {}): BindRequest {
  return { v: 1, epoch, leaseId: `lease-${epoch}`, ownerHash: 'x', incarnation: 'inc', ...changes }
}

function outcome(text = 'done'): JobOutcome {
  return { kind: 'problem', problem: { code: 'JobTimeout', origin: 'job', message: text } }
}

/** A fence bound to epoch 1. */
function boundFence(limits: Partial<FenceLimits> = {}): Fence {
  const fence = new Fence({ incarnation: 'inc', nowMs: 0, limits })
  fence.bind(bindRequest(1), 0)
  return fence
}

/** What a post is answered with, in one word. */
function post(
  fence: Fence,
  jobId: string,
  given: { epoch?: number; token?: number; digest?: string; nowMs?: number } = {},
): string {
  const { epoch = 1, token = given.epoch ?? 1, digest = DIGEST, nowMs = 0 } = given
  const decision = fence.post(request(jobId, epoch, digest), token, nowMs)
  expect(fence.invariants()).toEqual([])
  return decision.kind === 'refuse' ? decision.problem.code : decision.kind
}

function finish(fence: Fence, jobId: string, nowMs = 0): string | null {
  const next = fence.finish(jobId, outcome(jobId), 10, nowMs).start?.jobId ?? null
  expect(fence.invariants()).toEqual([])
  return next
}

function codeOf(answer: { reply: unknown } | { problem: { code: string } }): string {
  return 'problem' in answer ? answer.problem.code : 'ok'
}

describe('rule 1: a known job is attached to or answered', () => {
  test('the second post of a running job attaches, of a finished one is answered', () => {
    const fence = boundFence()
    expect(post(fence, 'j/1')).toBe('start')
    expect(post(fence, 'j/1')).toBe('attach')
    finish(fence, 'j/1')
    expect(fence.post(request('j/1'), 1, 0)).toEqual({ kind: 'answer', outcome: outcome('j/1') })
  })

  test('another digest is InvalidRequest', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    expect(post(fence, 'j/1', { digest: OTHER_DIGEST })).toBe('InvalidRequest')
    finish(fence, 'j/1')
    expect(post(fence, 'j/1', { digest: OTHER_DIGEST })).toBe('InvalidRequest')
  })

  test('whatever the epoch or state: after a rebind, a revoke, a drain and a cancel', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    finish(fence, 'j/1')
    fence.cancel('j/1', 1)
    expect(post(fence, 'j/1')).toBe('answer')
    fence.bind(bindRequest(2), 0)
    expect(post(fence, 'j/1')).toBe('answer')
    fence.revoke(2)
    expect(post(fence, 'j/1')).toBe('answer')
    expect(fence.drain({ v: 1, drainId: 'd', epoch: 2, useSeq: 1 }, 1e9).drained).toBe(true)
    expect(post(fence, 'j/1')).toBe('answer')
  })

  test('authorised by the token of the epoch that started it, or of the current one of the same owner', () => {
    const fence = boundFence()
    fence.bind(bindRequest(2), 0)
    post(fence, 'j/2', { epoch: 2 })
    expect(post(fence, 'j/2', { epoch: 2, token: 1 })).toBe('InvalidRequest')
    fence.bind(bindRequest(3), 0)
    expect(post(fence, 'j/2', { epoch: 2 })).toBe('attach')
    expect(post(fence, 'j/2', { epoch: 3 })).toBe('attach')
    expect(post(fence, 'j/2', { epoch: 4 })).toBe('InvalidRequest')
  })

  test('not by the token of an epoch that was never bound here, nor of another lease of one that was', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    fence.bind(bindRequest(4), 0)
    expect(post(fence, 'j/1', { token: 3 })).toBe('InvalidRequest')
    expect(post(fence, 'j/1', { token: 4 })).toBe('attach')
    for (const epoch of [1, 4]) {
      expect(fence.isOtherLease(epoch, `lease-${epoch}`)).toBe(false)
      expect(fence.isOtherLease(epoch, 'guessed')).toBe(true)
    }
  })

  test('the leases that were bound are remembered in a bounded number: the oldest ask in vain', () => {
    const fence = boundFence({ leases: 2 })
    post(fence, 'j/1')
    for (const epoch of [2, 3]) fence.bind(bindRequest(epoch), 0)
    expect(post(fence, 'j/1', { token: 1 })).toBe('InvalidRequest')
    expect(post(fence, 'j/1', { token: 2 })).toBe('attach')
    expect(codeOf(fence.bind(bindRequest(3), 0))).toBe('ok')
  })

  test('a job whose result was dropped never starts again: PodLost', () => {
    const fence = boundFence({ results: 2 })
    for (const id of ['j/1', 'j/2', 'j/3']) {
      post(fence, id)
      finish(fence, id)
      fence.ack({ v: 1, jobId: id, digest: DIGEST }, 1)
    }
    expect(post(fence, 'j/1')).toBe('PodLost')
    expect(post(fence, 'j/2')).toBe('answer')
    fence.bind(bindRequest(2), 0)
    expect(post(fence, 'j/1', { epoch: 2 })).toBe('PodLost')
  })
})

describe('rule 1: who may ask for a known job', () => {
  test('the owner, with the token of its grant or of any later one, also of one that is over', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    finish(fence, 'j/1')
    for (const epoch of [2, 3]) fence.bind(bindRequest(epoch), 0)
    for (const epoch of [1, 2, 3]) expect(post(fence, 'j/1', { epoch })).toBe('answer')
  })
})

describe('rule 2: a cancel that came first', () => {
  test('refuses the job when it comes, also under a later epoch', () => {
    const fence = boundFence()
    expect(codeOf(fence.cancel('j/1', 1))).toBe('ok')
    expect(post(fence, 'j/1')).toBe('Cancelled')
    fence.bind(bindRequest(2), 0)
    expect(post(fence, 'j/1')).toBe('Cancelled')
    expect(post(fence, 'j/1', { epoch: 2 })).toBe('Cancelled')
  })

  test('a waiting job that is cancelled never starts', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    post(fence, 'j/2')
    const cancelled = fence.cancel('j/2', 1)
    expect(cancelled).toMatchObject({ reply: { kill: null, ended: [{ jobId: 'j/2' }] } })
    expect(finish(fence, 'j/1')).toBe(null)
    expect(post(fence, 'j/2')).toBe('Cancelled')
  })

  test('a running job is to be killed; a finished one keeps its outcome', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    expect(fence.cancel('j/1', 1)).toEqual({ reply: { kill: 'j/1', ended: [] } })
    finish(fence, 'j/1')
    expect(fence.cancel('j/1', 1)).toEqual({ reply: { kill: null, ended: [] } })
    expect(post(fence, 'j/1')).toBe('answer')
  })

  test('is refused with the token of another epoch', () => {
    const fence = boundFence()
    fence.bind(bindRequest(2), 0)
    post(fence, 'j/1', { epoch: 2 })
    expect(codeOf(fence.cancel('j/1', 1))).toBe('InvalidRequest')
    expect(codeOf(fence.cancel('j/1', null))).toBe('ok')
  })

  test('tombstones are bounded, the oldest go', () => {
    const fence = boundFence({ tombstones: 2 })
    for (const id of ['j/1', 'j/2', 'j/3']) fence.cancel(id, 1)
    expect(post(fence, 'j/3')).toBe('Cancelled')
    expect(post(fence, 'j/2')).toBe('Cancelled')
    expect(post(fence, 'j/1')).toBe('start')
  })
})

describe('rule 3: the epoch', () => {
  test('one that is over is LeaseRevoked, also after a rebind', () => {
    const fence = boundFence()
    fence.bind(bindRequest(2), 0)
    expect(post(fence, 'j/1')).toBe('LeaseRevoked')
    expect(post(fence, 'j/1', { epoch: 2 })).toBe('start')
  })

  test('one that is still to come is LeaseRevoked, and stays so for that job', () => {
    const fence = boundFence()
    expect(post(fence, 'j/1', { epoch: 2 })).toBe('LeaseRevoked')
    fence.bind(bindRequest(2), 0)
    expect(post(fence, 'j/1', { epoch: 2 })).toBe('LeaseRevoked')
    expect(post(fence, 'j/2', { epoch: 2 })).toBe('start')
    fence.bind(bindRequest(3), 0)
    finish(fence, 'j/2')
    expect(post(fence, 'j/1', { epoch: 3 })).toBe('start')
  })

  test('a job must come with the token of its epoch', () => {
    const fence = boundFence()
    expect(post(fence, 'j/1', { epoch: 1, token: 2 })).toBe('InvalidRequest')
  })

  test('a runner that was never bound says PodLost: an earlier process may have run the job', () => {
    const fence = new Fence({ incarnation: 'inc', nowMs: 0 })
    expect(post(fence, 'j/1')).toBe('PodLost')
    fence.bind(bindRequest(3), 0)
    expect(post(fence, 'j/1', { epoch: 2 })).toBe('PodLost')
    expect(post(fence, 'j/1', { epoch: 3 })).toBe('start')
  })
})

describe('rule 4: a busy pod', () => {
  test('runs one job at a time and the others in the order they came', () => {
    const fence = boundFence()
    expect(post(fence, 'j/1')).toBe('start')
    expect(post(fence, 'j/2')).toBe('attach')
    expect(post(fence, 'j/3')).toBe('attach')
    expect(finish(fence, 'j/1')).toBe('j/2')
    expect(finish(fence, 'j/2')).toBe('j/3')
    expect(finish(fence, 'j/3')).toBe(null)
  })

  test('is PodBusy past the bound of its queue', () => {
    const fence = boundFence()
    for (let n = 0; n <= FENCE_LIMITS.queue; n++) expect(post(fence, `j/${n}`)).not.toBe('PodBusy')
    expect(post(fence, 'j/99')).toBe('PodBusy')
    expect(fence.useSeq).toBe(FENCE_LIMITS.queue + 1)
    finish(fence, 'j/0')
    expect(post(fence, 'j/99')).toBe('attach')
  })
})

describe('bind', () => {
  test('again with the same epoch and lease changes nothing', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    expect(fence.bind(bindRequest(1), 5)).toEqual({ reply: { v: 1, useSeq: 1 }, ended: [] })
  })

  test('epochs only grow', () => {
    const fence = boundFence()
    fence.bind(bindRequest(3), 0)
    expect(codeOf(fence.bind(bindRequest(2), 0))).toBe('LeaseRevoked')
    expect(codeOf(fence.bind(bindRequest(3, { leaseId: 'other' }), 0))).toBe('LeaseRevoked')
    expect(fence.epoch).toBe(3)
  })

  test('I2: a pod that served X never serves Y', () => {
    const fence = boundFence()
    expect(codeOf(fence.bind(bindRequest(2, { ownerHash: 'y' }), 0))).toBe('InvalidRequest')
    expect(fence.epoch).toBe(1)
  })

  test('F10: not even after a restart in the same folder, and only under a later epoch', () => {
    const fence = new Fence({ incarnation: 'inc', nowMs: 0, earlier: { epoch: 4, ownerHash: 'x' } })
    expect(codeOf(fence.bind(bindRequest(5, { ownerHash: 'y' }), 0))).toBe('InvalidRequest')
    expect(codeOf(fence.bind(bindRequest(4), 0))).toBe('LeaseRevoked')
    expect(codeOf(fence.bind(bindRequest(5), 0))).toBe('ok')
  })

  test('of another incarnation is PodLost', () => {
    const fence = boundFence()
    expect(codeOf(fence.bind(bindRequest(2, { incarnation: 'earlier' }), 0))).toBe('PodLost')
  })

  test('ends what waits under the older epoch, keeps what runs and what is finished', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    post(fence, 'j/2')
    const { ended } = fence.bind(bindRequest(2), 0)
    expect(ended).toMatchObject([{ jobId: 'j/2', outcome: { problem: { code: 'LeaseRevoked' } } }])
    expect(post(fence, 'j/2', { epoch: 2 })).toBe('attach')
    expect(finish(fence, 'j/1')).toBe('j/2')
  })
})

describe('revoke', () => {
  test('kills what runs, ends what waits, refuses what comes', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    post(fence, 'j/2')
    expect(fence.revoke(1)).toMatchObject({ kill: 'j/1', ended: [{ jobId: 'j/2' }] })
    expect(post(fence, 'j/3')).toBe('LeaseRevoked')
    expect(finish(fence, 'j/1')).toBe(null)
    expect(codeOf(fence.bind(bindRequest(1), 0))).toBe('LeaseRevoked')
    fence.bind(bindRequest(2), 0)
    expect(post(fence, 'j/2', { epoch: 2 })).toBe('start')
  })

  test('of an older epoch does not touch the current one', () => {
    const fence = boundFence()
    fence.bind(bindRequest(2), 0)
    post(fence, 'j/1', { epoch: 2 })
    post(fence, 'j/2', { epoch: 2 })
    expect(fence.revoke(1)).toEqual({ kill: null, ended: [] })
    expect(post(fence, 'j/3', { epoch: 2 })).toBe('attach')
  })

  test('that comes before its bind wins', () => {
    const fence = boundFence()
    fence.revoke(2)
    expect(codeOf(fence.bind(bindRequest(2), 0))).toBe('LeaseRevoked')
  })
})

describe('drain', () => {
  const drain = (fence: Fence, useSeq: number, nowMs: number, drainId = `d-${nowMs}-${useSeq}`) =>
    fence.drain({ v: 1, drainId, epoch: 1, useSeq }, nowMs).drained

  test('fails for another epoch or another use counter', () => {
    const fence = boundFence()
    expect(fence.drain({ v: 1, drainId: 'a', epoch: 2, useSeq: 0 }, 0).drained).toBe(false)
    expect(fence.drain({ v: 1, drainId: 'b', epoch: 1, useSeq: 1 }, 0).drained).toBe(false)
    expect(fence.drain({ v: 1, drainId: 'c', epoch: 1, useSeq: 0 }, 0).drained).toBe(true)
  })

  test('fails while a job runs or waits (F18)', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    expect(drain(fence, 1, 1e9)).toBe(false)
    post(fence, 'j/2')
    finish(fence, 'j/1', 2e9)
    fence.ack({ v: 1, jobId: 'j/1', digest: DIGEST }, 1)
    expect(drain(fence, 2, 3e9)).toBe(false)
  })

  test('an unsent result blocks it for resultHoldMs, a sent one for resultSentMs, an acknowledged one not at all', () => {
    const { resultHoldMs, resultSentMs } = FENCE_LIMITS
    const unsent = boundFence()
    post(unsent, 'j/1')
    finish(unsent, 'j/1', 100)
    expect(drain(unsent, 1, 100 + resultHoldMs - 1)).toBe(false)
    expect(drain(unsent, 1, 100 + resultHoldMs)).toBe(true)
    const sent = boundFence()
    post(sent, 'j/1')
    finish(sent, 'j/1', 100)
    sent.sent('j/1', 200)
    expect(drain(sent, 1, 200 + resultSentMs - 1)).toBe(false)
    expect(drain(sent, 1, 200 + resultSentMs)).toBe(true)
    const acknowledged = boundFence()
    post(acknowledged, 'j/1')
    finish(acknowledged, 'j/1', 100)
    acknowledged.ack({ v: 1, jobId: 'j/1', digest: DIGEST }, 1)
    expect(drain(acknowledged, 1, 100)).toBe(true)
  })

  test('is idempotent by its id, yes and no alike', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    expect(drain(fence, 1, 0, 'first')).toBe(false)
    finish(fence, 'j/1', 0)
    fence.ack({ v: 1, jobId: 'j/1', digest: DIGEST }, 1)
    expect(drain(fence, 1, 10, 'first')).toBe(false)
    const yes = fence.drain({ v: 1, drainId: 'second', epoch: 1, useSeq: 1 }, 20)
    expect(yes).toEqual({ v: 1, drained: true, useSeq: 1, idleMs: 20 })
    expect(fence.drain({ v: 1, drainId: 'second', epoch: 1, useSeq: 1 }, 30)).toEqual(yes)
  })

  test('that succeeded refuses everything but known jobs with LeaseRevoked', () => {
    const fence = boundFence()
    expect(drain(fence, 0, 0)).toBe(true)
    expect(post(fence, 'j/1')).toBe('LeaseRevoked')
    expect(codeOf(fence.bind(bindRequest(2), 0))).toBe('LeaseRevoked')
    expect(fence.leaseProblem(1)?.code).toBe('LeaseRevoked')
    expect(fence.promoteProblem()?.code).toBe('LeaseRevoked')
    expect(fence.state).toBe('draining')
  })

  test('a rebind acknowledges nothing', () => {
    const fence = boundFence()
    post(fence, 'j/1')
    finish(fence, 'j/1')
    fence.bind(bindRequest(2), 0)
    expect(fence.drain({ v: 1, drainId: 'd', epoch: 2, useSeq: 1 }, 1).drained).toBe(false)
  })
})

describe('results', () => {
  test('an acknowledgement names the job by id and digest, and comes after the result', () => {
    const fence = boundFence()
    expect(fence.ack({ v: 1, jobId: 'j/1', digest: DIGEST }, 1)).toBeUndefined()
    post(fence, 'j/1')
    expect(fence.ack({ v: 1, jobId: 'j/1', digest: DIGEST }, 1)?.code).toBe('InvalidRequest')
    finish(fence, 'j/1')
    expect(fence.ack({ v: 1, jobId: 'j/1', digest: OTHER_DIGEST }, 1)?.code).toBe('InvalidRequest')
    expect(fence.undelivered(0)).toBe(1)
    expect(fence.ack({ v: 1, jobId: 'j/1', digest: DIGEST }, 1)).toBeUndefined()
    expect(fence.undelivered(0)).toBe(0)
  })

  test('past the bounds acknowledged ones go first, the newest never', () => {
    const fence = boundFence({ results: 2, resultBytes: 100 })
    for (const id of ['j/1', 'j/2']) {
      post(fence, id)
      finish(fence, id)
    }
    fence.ack({ v: 1, jobId: 'j/2', digest: DIGEST }, 1)
    post(fence, 'j/3')
    finish(fence, 'j/3')
    expect([post(fence, 'j/1'), post(fence, 'j/2'), post(fence, 'j/3')]).toEqual([
      'answer',
      'PodLost',
      'answer',
    ])
    post(fence, 'j/4')
    fence.finish('j/4', outcome(), 1_000, 0)
    expect([post(fence, 'j/1'), post(fence, 'j/3'), post(fence, 'j/4')]).toEqual([
      'PodLost',
      'PodLost',
      'answer',
    ])
  })

  test('a pod that cannot remember more job ids retires', () => {
    const fence = boundFence({ startedIds: 2 })
    for (const id of ['x', 'y']) {
      post(fence, id)
      finish(fence, id)
    }
    expect(post(fence, 'z')).toBe('LeaseRevoked')
    expect(fence.state).toBe('draining')
    expect(post(fence, 'x')).toBe('answer')
  })
})

describe('idle time', () => {
  test('F21: only jobs and binds are use', () => {
    const fence = boundFence()
    expect(fence.idleMs(50)).toBe(50)
    post(fence, 'j/1', { nowMs: 60 })
    expect(fence.idleMs(70)).toBe(0)
    finish(fence, 'j/1', 80)
    expect(fence.idleMs(90)).toBe(0)
    fence.ack({ v: 1, jobId: 'j/1', digest: DIGEST }, 1)
    expect(fence.idleMs(90)).toBe(10)
    post(fence, 'j/1', { nowMs: 100 })
    fence.cancel('j/2', 1)
    expect(fence.idleMs(120)).toBe(40)
    fence.bind(bindRequest(2), 130)
    expect(fence.idleMs(131)).toBe(1)
  })
})
