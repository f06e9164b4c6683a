import { describe, expect, test } from 'vitest'
import { SeatHold } from './seat-hold.js'

const grant = (seatEpoch: number) => ({ seatEpoch, uuids: ['GPU-a'] })

describe('park', () => {
  test('asks for each job, and gives back after each', () => {
    const hold = new SeatHold('park')
    expect(hold.requestKey('s/1', 1)).not.toBe(hold.requestKey('s/2', 1))
    hold.granted(1, grant(5))
    expect(hold.jobEnded()).toEqual([5])
    expect(hold.jobEnded()).toEqual([])
    expect(hold.epochsEnded(1)).toEqual([])
  })
})

describe('hold', () => {
  test('asks for the same seat again within an epoch, for another one in the next', () => {
    const hold = new SeatHold('hold')
    expect(hold.requestKey('s/1', 1)).toBe(hold.requestKey('s/2', 1))
    expect(hold.requestKey('s/1', 2)).not.toBe(hold.requestKey('s/1', 1))
  })

  test('keeps the seat between jobs, until the epoch ends', () => {
    const hold = new SeatHold('hold')
    expect(hold.heldFor(1)).toBeNull()
    hold.granted(1, grant(5))
    expect(hold.jobEnded()).toEqual([])
    expect(hold.heldFor(1)).toMatchObject(grant(5))
    expect(hold.heldFor(2)).toBeNull()
    expect(hold.isHeldBy(0)).toBe(false)
    expect(hold.isHeldBy(1)).toBe(true)
    expect(hold.epochsEnded(1)).toEqual([5])
    expect(hold.epochsEnded(1)).toEqual([])
  })

  test('keeps the seat of a job that runs past the end of its epoch, until the job ends', () => {
    const hold = new SeatHold('hold')
    hold.granted(1, grant(5))
    expect(hold.epochsEnded(1)).toEqual([])
    expect(hold.jobEnded()).toEqual([5])
  })

  test('keeps nothing for an earlier epoch that ends late', () => {
    const hold = new SeatHold('hold')
    hold.granted(2, grant(6))
    hold.jobEnded()
    expect(hold.epochsEnded(1)).toEqual([])
    expect(hold.epochsEnded(Number.POSITIVE_INFINITY)).toEqual([6])
  })
})
