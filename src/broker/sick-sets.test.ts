import { describe, expect, it } from 'vitest'
import { makeWorld, type World, withSeatSets } from '../../test/support/broker-world.js'
import type { GpuShare } from '../contract/gpu.js'
import { TIMEOUT } from '../contract/limits.js'
import type { PoolSpec } from '../contract/pool.js'
import { statusOf } from './status.js'

/** A pool with two sets of two seats, on which callers park. */
function aPool(spec: Partial<PoolSpec> = {}, gpu: Partial<GpuShare> = {}, coreVersion?: number): World {
  const profile = withSeatSets({ seatSet: 2, idle: 'park', duty: 0.2, trust: 'shared', ...gpu })
  return makeWorld({
    spec: { budget: 4, maxPods: 40, ...spec, profile },
    ...(coreVersion === undefined ? {} : { coreVersion }),
  })
}

function ask(w: World, ...callers: string[]): string[] {
  const asked = callers.map((caller) => w.request({ caller }))
  w.advance(5_000)
  return asked
}

const setOf = (w: World, leaseId: string) => w.state.pods.get(w.granted(leaseId).pod)!.set
const setsOf = (w: World, kind: string) => w.pods(kind).map((name) => w.state.pods.get(name)!.set)

/** What the activity of a job says that got no GPU. */
function tellSick(w: World, leaseId: string, sick = 'GPU-a quarantined (dirty)'): void {
  const { pod, epoch } = w.granted(leaseId)
  w.release(leaseId, { pod, epoch, clean: true, retire: true, sick })
}

describe('a seat set on which a job got no GPU', () => {
  it('is left by its caller for another one at once', () => {
    const w = aPool()
    const [a] = ask(w, 'a')
    expect(setOf(w, a!)).toBe(0)
    tellSick(w, a!)
    const [again] = ask(w, 'a')
    expect(setOf(w, again!)).toBe(1)
    expect(w.granted(again!).pod).not.toBe(w.granted(a!).pod)
  })

  it('has its standbys replaced by others elsewhere, and gets no pods', () => {
    const w = aPool({ standby: 2 })
    w.advance(5_000)
    const [a] = ask(w, 'a')
    expect(setOf(w, a!)).toBe(0)
    tellSick(w, a!)
    w.advance(5_000)
    expect(setsOf(w, 'standby')).toEqual([1, 1])
    expect(statusOf(w.state, w.now).seatSets?.sick).toEqual({ sets: [0], why: 'GPU-a quarantined (dirty)' })
  })

  it('is left by other callers: an idle pod goes at once, a held one when its runner says so', () => {
    const w = aPool()
    const [a, idle, works] = ask(w, 'a', 'idle', 'works')
    w.release(idle!)
    w.job(works!, 20_000)
    tellSick(w, a!)
    w.advance(1_000)
    expect(w.pods('idle')).toEqual([])
    expect(w.lease(works!)?.kind).toBe('granted')
    w.advance(30_000)
    expect(w.end(works!).end).toBe('recalled')
    const [again] = ask(w, 'idle')
    expect(setOf(w, again!)).not.toBeNull()
  })

  it('is learnt from the end of its pod as well', () => {
    const w = aPool()
    const [a, b] = ask(w, 'a', 'b')
    w.backend.kill(w.granted(a!).pod, 'failed', 'SeatSetSick')
    w.advance(100)
    expect(w.end(a!)).toMatchObject({ end: 'podLost', problem: { details: { reason: 'SeatSetSick' } } })
    w.release(b!)
    const [again] = ask(w, 'b')
    expect(setOf(w, again!)).toBe(1)
  })

  it('of one seat is one whose GPU failed under a job; of several the others serve on', () => {
    for (const [seatSet, then] of [
      [1, 1],
      [2, 0],
    ] as const) {
      const w = aPool({}, { seatSet })
      const [a] = ask(w, 'a')
      w.backend.kill(w.granted(a!).pod, 'failed', 'SeatLost')
      w.advance(100)
      const [again] = ask(w, 'a')
      expect(setOf(w, again!)).toBe(then)
    }
  })

  it('is tried again after a while, twice as long each time, and from the beginning once it was well for as long', () => {
    const w = aPool({ budget: 2, standby: 1 })
    const pauses = [1, 2, 4].map((times) => times * TIMEOUT.sickSetMs)
    for (const pauseMs of pauses) {
      const [a] = ask(w, 'a')
      tellSick(w, a!)
      w.advance(pauseMs - 1)
      expect(w.pods()).toEqual([])
      w.advance(5_000)
      expect(setsOf(w, 'standby')).toEqual([0])
    }
    w.advance(pauses.at(-1)!)
    expect(w.state.sick.size).toBe(0)
  })

  it('is not put off again by what is still seen of its pods', () => {
    const w = aPool({ budget: 2 })
    w.handling = (effect) => (effect.kind === 'delete' ? { beforeMs: 60_000 } : {})
    const [a] = ask(w, 'a')
    w.backend.kill(w.granted(a!).pod, 'failed', 'SeatSetSick')
    w.advance(TIMEOUT.sickSetMs + 1_000)
    w.observeAll()
    const [again] = ask(w, 'a')
    expect(setOf(w, again!)).toBe(0)
  })

  it('stays so when the pool continues as new', () => {
    const w = aPool()
    const [a] = ask(w, 'a')
    tellSick(w, a!)
    w.advance(100)
    w.restart()
    const [again] = ask(w, 'a')
    expect(setOf(w, again!)).toBe(1)
  })

  it('is like any other to an earlier core', () => {
    const w = aPool({}, {}, 3)
    const [a] = ask(w, 'a')
    tellSick(w, a!)
    const [again] = ask(w, 'a')
    expect(setOf(w, again!)).toBe(0)
  })

  it('late word of an earlier lease says nothing of it', () => {
    const w = aPool()
    const [a] = ask(w, 'a')
    const { pod, epoch } = w.granted(a!)
    w.release(a!, { pod, epoch: epoch + 1, retire: true, sick: 'late' })
    w.advance(100)
    expect(w.state.sick.size).toBe(0)
    expect(w.lease(a!)?.kind).toBe('granted')
  })
})

describe('while every seat set is sick', () => {
  it('who waits and who comes hears SeatUnavailable at once, with what was said of the GPUs', () => {
    const w = aPool({ budget: 2 }, { idle: 'hold' })
    const [a] = ask(w, 'a', 'b')
    const [waits] = ask(w, 'c')
    tellSick(w, a!)
    w.advance(100)
    const late = w.request({ caller: 'a' })
    w.advance(100)
    for (const id of [waits!, late]) {
      const { end, problem } = w.end(id)
      expect([end, problem?.code, problem?.details?.reason]).toEqual([
        'failed',
        'SeatUnavailable',
        'SeatSetSick',
      ])
      expect(problem?.message).toContain('GPU-a quarantined (dirty)')
    }
  })

  it('of the guarantee, another one that is kept takes its place where the fleet’s word has expired', () => {
    const w = aPool({ guarantee: 2 })
    const [a] = ask(w, 'a')
    w.send({ kind: 'setBudget', budget: 4, expiresAtMs: w.now + 100 })
    w.advance(1_000)
    tellSick(w, a!)
    const [again] = ask(w, 'a')
    expect(setOf(w, again!)).toBe(1)
  })

  it('who asks for one that others fill waits, and is told of the sick one', () => {
    const w = aPool({}, { idle: 'hold' })
    const [a] = ask(w, 'a', 'b', 'c', 'd')
    tellSick(w, a!)
    const id = w.request({ caller: 'e', timeoutMs: 2_000 })
    w.advance(4_000)
    expect(w.end(id).problem).toMatchObject({ code: 'QueueTimeout', details: { reason: 'BudgetExhausted' } })
    expect(w.end(id).problem?.message).toContain('sick (1: GPU-a quarantined (dirty))')
  })
})
