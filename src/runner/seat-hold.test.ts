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

describe('checkpoint', () => {
  test('asks for another seat after each that was given back, and for the same one while it is held', () => {
    const hold = new SeatHold('checkpoint')
    const first = hold.requestKey('s/1', 1)
    hold.granted(1, grant(5))
    expect(hold.jobEnded()).toEqual([])
    expect(hold.requestKey('s/2', 1)).toBe(first)
    hold.suspended(hold.toSuspend!)
    expect(hold.requestKey('s/2', 1)).not.toBe(first)
  })

  test('suspends what no job uses, and has it resumed by the next job of the epoch', () => {
    const hold = new SeatHold('checkpoint')
    hold.granted(1, grant(5))
    expect(hold.toSuspend).toBeNull()
    hold.jobEnded()
    expect(hold.toSuspend).toMatchObject({ epoch: 1, seatEpoch: 5 })
    hold.suspended({ epoch: 1, seatEpoch: 5 })
    expect(hold.toSuspend).toBeNull()
    expect(hold.heldFor(1)).toBeNull()
    expect([hold.isSuspended(1), hold.isSuspended(2)]).toEqual([true, false])
    hold.resumed()
    hold.granted(1, grant(6))
    expect(hold.isSuspended(1)).toBe(false)
  })

  test('gives back what holds nothing, once', () => {
    const hold = new SeatHold('checkpoint')
    hold.granted(1, grant(5))
    hold.jobEnded()
    expect(hold.giveBack(5)).toEqual([5])
    expect(hold.giveBack(5)).toEqual([])
    expect(hold.isHeldBy(1)).toBe(false)
  })

  test('ends what is suspended with its epoch', () => {
    const hold = new SeatHold('checkpoint')
    hold.granted(1, grant(5))
    hold.jobEnded()
    hold.suspended({ epoch: 1, seatEpoch: 5 })
    expect([hold.isHeldBy(0), hold.isHeldBy(1)]).toEqual([false, true])
    expect(hold.epochsEnded(0)).toEqual([])
    expect(hold.epochsEnded(1)).toEqual([5])
    expect(hold.epochsEnded(1)).toEqual([])
    expect(hold.isSuspended(1)).toBe(false)
  })

  test('gives back both the seat of what is suspended and the one on which it may be or not', () => {
    const hold = new SeatHold('checkpoint')
    hold.granted(1, grant(5))
    hold.jobEnded()
    hold.suspended({ epoch: 1, seatEpoch: 5 })
    hold.granted(1, grant(6))
    hold.jobEnded()
    expect(hold.heldFor(1)).toBeNull()
    expect(hold.toSuspend).toMatchObject({ seatEpoch: 6 })
    expect(hold.epochsEnded(1)).toEqual([5, 6])
  })

  test('is told too late that a seat was suspended which its epoch has given back', () => {
    const hold = new SeatHold('checkpoint')
    hold.granted(1, grant(5))
    hold.jobEnded()
    expect(hold.epochsEnded(1)).toEqual([5])
    hold.suspended({ epoch: 1, seatEpoch: 5 })
    expect(hold.isSuspended(1)).toBe(false)
  })

  test('knows what is lost in its epoch alone', () => {
    const hold = new SeatHold('checkpoint')
    hold.lost(1, 'it was killed')
    expect([hold.whyLost(1), hold.whyLost(2)]).toEqual(['it was killed', null])
  })
})
