import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { JobOutcome } from '../contract/index.js'
import { Fence } from './fence.js'

/** Random histories of everything a runner can hear, late, doubled and out of order, against what was promised. */

const OUTCOME: JobOutcome = { kind: 'problem', problem: { code: 'JobTimeout', origin: 'job', message: 'x' } }
const DIGESTS = ['a'.repeat(64), 'b'.repeat(64)]

const epoch = fc.constantFrom(1, 1, 1, 2, 2, 3)
const jobId = fc.constantFrom('s/1', 's/2', 's/3', 'odd')
const input = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('post' as const), jobId, epoch, other: fc.nat(9) }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('finish' as const) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('bind' as const), epoch, owner: fc.nat(5) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('cancel' as const), jobId, epoch }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('revoke' as const), epoch }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('ack' as const), jobId, epoch }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('sent' as const), jobId }) },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('drain' as const),
      epoch,
      behind: fc.nat(1),
      drainId: fc.nat(5),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('wait' as const), ms: fc.nat(70_000) }) },
)
type Input = typeof input extends fc.Arbitrary<infer One> ? One : never

/** What the runner has promised so far, from the outside. */
class Witness {
  readonly fence = new Fence({
    incarnation: 'inc',
    nowMs: 0,
    limits: { queue: 2, results: 1, tombstones: 50, resultBytes: 1_000 },
  })
  nowMs = 0
  readonly starts = new Map<string, number>()
  /** (job, epoch) that were told "never started here" or "cancelled" */
  readonly final = new Set<string>()
  readonly drains = new Map<string, string>()
  drained = false
  revokedEpoch = 0
  accepted = 0
  readonly digests = new Map<string, string>()
  owner: string | undefined

  started(id: string, underEpoch: number): void {
    this.starts.set(id, (this.starts.get(id) ?? 0) + 1)
    expect(this.starts.get(id), `${id} started twice`).toBe(1)
    expect(this.final.has(`${id}@${underEpoch}`), `${id} started although it was refused`).toBe(false)
    expect(this.final.has(`${id}@cancelled`), `${id} started although it was cancelled`).toBe(false)
    expect(this.drained, `${id} started after the drain`).toBe(false)
    expect(underEpoch, `${id} started under a revoked epoch`).toBeGreaterThan(this.revokedEpoch)
  }

  ended(jobs: { jobId: string; outcome: JobOutcome }[], underEpoch: (id: string) => number): void {
    for (const { jobId: id, outcome } of jobs) {
      expect(this.starts.has(id), `${id} is ended as never started`).toBe(false)
      if (outcome.kind === 'problem' && outcome.problem.code === 'LeaseRevoked')
        this.final.add(`${id}@${underEpoch(id)}`)
      else this.final.add(`${id}@cancelled`)
    }
  }
}

function apply(world: Witness, one: Input, waitingUnder: Map<string, number>): void {
  const { fence } = world
  switch (one.kind) {
    case 'post': {
      const digest = DIGESTS[one.other === 0 ? 1 : 0]!
      const request = { v: 1 as const, jobId: one.jobId, digest, epoch: one.epoch, spec: { command: 'x' } }
      const waiting = fence.waiting
      const decision = fence.post(request, one.epoch, world.nowMs)
      if (decision.kind === 'start') world.started(one.jobId, one.epoch)
      if (fence.waiting > waiting) waitingUnder.set(one.jobId, one.epoch)
      if (decision.kind === 'start' || fence.waiting > waiting) {
        world.accepted++
        world.digests.set(one.jobId, digest)
      } else if (decision.kind !== 'refuse')
        expect(world.digests.get(one.jobId), 'the result of another job').toBe(digest)
      expect(fence.useSeq).toBe(world.accepted)
      if (decision.kind !== 'refuse') return
      const { code } = decision.problem
      if (code === 'LeaseRevoked' || code === 'Cancelled')
        expect(world.starts.has(one.jobId), `${one.jobId} started, but is answered ${code}`).toBe(false)
      if (code === 'LeaseRevoked') world.final.add(`${one.jobId}@${one.epoch}`)
      if (code === 'Cancelled') world.final.add(`${one.jobId}@cancelled`)
      return
    }
    case 'finish': {
      if (fence.running === null) return
      const { start } = fence.finish(fence.running, OUTCOME, 300, world.nowMs)
      if (start !== null) world.started(start.jobId, start.epoch)
      return
    }
    case 'bind': {
      const ownerHash = one.owner === 0 ? 'y' : 'x'
      const answer = fence.bind(
        { v: 1, epoch: one.epoch, leaseId: `l${one.epoch}`, ownerHash, incarnation: 'inc' },
        world.nowMs,
      )
      world.ended(answer.ended, (id) => waitingUnder.get(id)!)
      if ('problem' in answer) return
      world.owner ??= ownerHash
      expect(world.owner, 'two owners').toBe(ownerHash)
      expect(world.drained, 'bound after a drain').toBe(false)
      return
    }
    case 'cancel': {
      const known = world.starts.has(one.jobId)
      const answer = fence.cancel(one.jobId, one.epoch)
      if ('problem' in answer) return
      world.ended(answer.reply.ended, () => 0)
      if (!known) world.final.add(`${one.jobId}@cancelled`)
      return
    }
    case 'revoke': {
      const { kill, ended } = fence.revoke(one.epoch)
      world.revokedEpoch = Math.max(world.revokedEpoch, one.epoch)
      world.ended(ended, (id) => waitingUnder.get(id)!)
      if (kill !== null) expect(fence.running).toBe(kill)
      return
    }
    case 'ack':
      fence.ack({ v: 1, jobId: one.jobId, digest: DIGESTS[0]! }, one.epoch)
      return
    case 'sent':
      fence.sent(one.jobId, world.nowMs)
      return
    case 'drain': {
      const drainId = `d${one.drainId}`
      const isBusy = fence.running !== null || fence.waiting > 0 || fence.undelivered(world.nowMs) > 0
      const request = { v: 1 as const, drainId, epoch: one.epoch, useSeq: fence.useSeq - one.behind }
      const reply = fence.drain(request, world.nowMs)
      const before = world.drains.get(drainId)
      if (before !== undefined) expect(JSON.stringify(reply)).toBe(before)
      else if (reply.drained) {
        expect(isBusy || one.behind === 1 || one.epoch !== fence.epoch, 'drained in use').toBe(false)
        world.drained = true
      }
      world.drains.set(drainId, JSON.stringify(reply))
      return
    }
    case 'wait':
      world.nowMs += one.ms
  }
}

test('I11 and every promise of an answer hold in any history (the seed is printed on failure)', () => {
  fc.assert(
    fc.property(fc.array(input, { maxLength: 60, size: 'max' }), (history) => {
      const world = new Witness()
      const waitingUnder = new Map<string, number>()
      let useSeq = 0
      let epochBefore = 0
      for (const one of history) {
        apply(world, one, waitingUnder)
        expect(world.fence.invariants()).toEqual([])
        expect(world.fence.useSeq).toBeGreaterThanOrEqual(useSeq)
        expect(world.fence.epoch).toBeGreaterThanOrEqual(epochBefore)
        useSeq = world.fence.useSeq
        epochBefore = world.fence.epoch
      }
    }),
    { numRuns: 1_000 },
  )
})
