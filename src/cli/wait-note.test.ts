import { expect, test } from 'vitest'
import type { Waiting } from '../client/index.js'
import { type PoolStatus, problem, QUEUE, type QueueRow, WAIT_REASONS } from '../contract/index.js'
import { waitNote } from './wait-note.js'

const status = {
  pool: 'cpu',
  budget: { inForce: 4, held: 4 },
  pods: { starting: 1, promoting: 0, idle: 0 },
  breaker: { retryAtMs: 15_000, last: problem('PodStartFailed', `pod x: Exited:\n${'log '.repeat(999)}`) },
} as PoolStatus

function forPod(reason: string, other: Partial<PoolStatus> = {}): Waiting {
  const row = { reason, position: 2, deadlineMs: 70_000 } as QueueRow
  return { for: 'pod', row, total: 5, status: { ...status, ...other } as PoolStatus }
}

test('says the reason, the place, the time that is left, and what helps', () => {
  expect(waitNote(forPod('BudgetExhausted'), 10_000)).toBe(
    'waiting for a pod of cpu (BudgetExhausted, place 2 of 5 in the queue, gives up in 1m00s): ' +
      'all 4 of the budget are held; one comes free when a lease and its keep-alive have ended, or raise it with firepool pool resize cpu --budget N',
  )
})

test.each(WAIT_REASONS)('%s has a cause and a remedy, in one line', (reason) => {
  const note = waitNote(forPod(reason), 10_000)
  expect(note).toMatch(/^waiting for a pod of cpu \(\w+, .*\): [^;]+(; .+)?$/)
  expect(note).not.toContain('\n')
  expect(note.length).toBeLessThan(700)
})

test('idle pods that are kept for their callers are named', () => {
  const pods = { ...status.pods, idle: 3 }
  expect(waitNote(forPod('BudgetExhausted', { pods }), 0)).toContain(
    'held (3 idle, kept for their callers); ',
  )
})

test('a budget of 0, a pool that can start nothing, and a reason of a newer pool', () => {
  const budget = { ...status.budget, inForce: 0 }
  expect(waitNote(forPod('BudgetExhausted', { budget }), 0)).toContain('the budget is 0; raise it')
  const pods = { ...status.pods, starting: 0 }
  expect(waitNote(forPod('PodStarting', { pods }), 0)).toContain('none can be started')
  expect(waitNote(forPod('Unheard'), 0)).toMatch(/\(Unheard, place 2 of 5 .*\)$/)
})

test('a deadline that has passed leaves nothing', () => {
  expect(waitNote(forPod('PodStarting'), 999_999)).toContain('gives up in 0ms')
})

test('nobody takes the work', () => {
  expect(waitNote({ for: 'worker', taskQueue: QUEUE.jobs }, 0)).toMatch(
    /a worker that takes the job: .*--job-slots/,
  )
  expect(waitNote({ for: 'worker', taskQueue: QUEUE.workflows }, 0)).toContain('takes the workflow')
})

test('a pool that answers nobody is named, with what to do', () => {
  const note = waitNote({ for: 'answer', pool: 'cpu', why: 'its workflow task fails; look at it' }, 0)
  expect(note).toBe('waiting for pool cpu to answer: its workflow task fails; look at it')
})
