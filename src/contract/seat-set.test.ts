import { expect, it } from 'vitest'
import { checkPoolSpec } from './index.js'
import { parkedPods, seatSetRule } from './seat-set.js'

const rule = (gpu: object) => {
  const profile = { backend: 'kubernetes', image: 'i', gpu }
  return seatSetRule(checkPoolSpec({ v: 1, name: 'p', budget: 8, profile }).value!.profile)
}

it('lets so many parked pods into a set that nine callers of ten find a seat free', () => {
  // Computed with exact fractions.
  expect([0.26, 0.61, 0.96].map((duty) => parkedPods(8, duty))).toEqual([20, 10, 8])
  expect([0.2, 0.6, 0.9].map((duty) => parkedPods(4, duty))).toEqual([10, 4, 4])
  expect([0.2, 0.6].map((duty) => parkedPods(2, duty))).toEqual([3, 2])
  expect([0.05, 0.2, 0.6].map((duty) => parkedPods(1, duty))).toEqual([3, 1, 1])
  expect([parkedPods(8, 1), parkedPods(8, 0.01)]).toEqual([8, 192])
})

it('has as many pods as seats where they hold them, and takes turns where they park', () => {
  const set = { provider: 'dra', seatSet: 8, colocation: true, agent: true }
  expect(rule({ ...set, count: 2, idle: 'hold' })).toEqual({ seats: 4, pods: 4, shared: false })
  expect(rule({ ...set, count: 2, idle: 'park', duty: 0.2, trust: 'shared' })).toEqual({
    seats: 4,
    pods: 10,
    shared: true,
  })
  expect(rule({ provider: 'dra', colocation: true })).toEqual({ seats: 1, pods: 1, shared: false })
})

it('has no more suspended pods than find their own seat free, because no other one will do', () => {
  const set = { provider: 'dra', seatSet: 8, colocation: true, agent: true, idle: 'checkpoint' }
  expect([0.05, 0.1, 0.2].map((duty) => rule({ ...set, duty })?.pods)).toEqual([24, 16, 8])
  expect(rule({ ...set, duty: 0.01 })?.pods).toBe(88)
})

it('is of providers that make several pods see the same GPUs, and of no others', () => {
  expect(rule({ provider: 'dra' })).toBeNull()
  expect(rule({ provider: 'device-plugin' })).toBeNull()
  expect(rule({ provider: 'hami', share: 0.5, colocation: true, idle: 'park', agent: true })).toBeNull()
  expect(seatSetRule(checkPoolSpec({ v: 1, name: 'p', budget: 1 }).value!.profile)).toBeNull()
})
