/** Every JSON shape that crosses an edge carries a version, and one of another version is refused by name. */
import { describe, expect, test } from 'vitest'
import { aSpec } from '../../test/support/broker-world.js'
import {
  type Checked,
  checkLeaseRequest,
  checkRelease,
  checkRenewal,
  checkResize,
  checkSetBudget,
  checkTokenOffer,
} from './check.js'
import { checkRunInput } from './check-run.js'
import { checkSession, checkSessionRun } from './check-session.js'
import { checkShardOrder } from './check-shard.js'
import { checkPoolSpec, readPoolSpec } from './check-spec.js'
import { ACTIVITY, QUERY, QUEUE, SESSION_UPDATE, SIGNAL, UPDATE, WORKFLOW } from './names.js'

const leaseId = '0b0f9a7e-6f0a-4c2b-9d0e-3c1f5a7b9d11'
const NOW = 1_900_000_000_000
const holder = { workflowId: 'w', firstExecutionRunId: 'r', runId: 'r' }
const grant = { v: 1, leaseId, pool: 'p', pod: 'p-1', address: 'http://a', incarnation: 'i', epoch: 1 }
const job = { command: ['true'] }
const request = { leaseId, holder, leaseWorkflowId: 'l', replyTo: 'signal', deadlineMs: NOW + 1 }
const order = {
  ...{ index: 1, by: 'x', seq: 1, generation: 1, leaving: false, mode: 'running', fleet: null },
  ...{ cap: { seats: 1, pods: 1 }, spec: { ...aSpec(), name: 'p.1' } },
}

type Check = (value: unknown) => Checked<unknown>

/** Shapes that must say their version. */
const STRICT: Record<string, [Check, object]> = {
  LeaseRequest: [(value) => checkLeaseRequest(value, NOW), request],
  Release: [checkRelease, { leaseId }],
  Renewal: [checkRenewal, { leaseId }],
  PoolSpec: [checkPoolSpec, aSpec()],
  'PoolSpec of a pool that runs': [readPoolSpec, aSpec()],
  ShardOrder: [(value) => checkShardOrder(value, 'p.1'), order],
}

/** Shapes that people write by hand, from any SDK: without a version they are of the first. */
const BY_HAND: Record<string, [Check, object]> = {
  TokenOffer: [checkTokenOffer, { leaseId, token: 't' }],
  Resize: [checkResize, { budget: 1 }],
  SetBudget: [checkSetBudget, { budget: 1, expiresAtMs: NOW }],
  RunInput: [(value) => checkRunInput(value, 'j'), { grant, job }],
  'Grant in a RunInput': [(value) => checkRunInput({ grant: value, job }, 'j'), grant],
  SessionInput: [(value) => checkSession(value, 'w'), { pool: 'p' }],
  SessionRun: [checkSessionRun, { job }],
}

describe('a shape', () => {
  test.each(Object.entries({ ...STRICT, ...BY_HAND }))(
    '%s of another version is refused by name',
    (_, [check, shape]) => {
      expect(check({ ...shape, v: 1 }).problem).toBeUndefined()
      for (const v of [2, 0, '1', true])
        expect(check({ ...shape, v }).problem, String(v)).toMatchObject({
          code: 'InvalidRequest',
          message: expect.stringContaining('version 1'),
        })
    },
  )

  test.each(Object.entries(STRICT))('%s without a version is refused', (_, [check, shape]) => {
    expect(check({ ...shape, v: undefined }).problem).toMatchObject({ code: 'InvalidRequest' })
  })

  test.each(Object.entries(BY_HAND))('%s without a version is of the first', (_, [check, shape]) => {
    for (const v of [undefined, null]) expect(check({ ...shape, v }).problem).toBeUndefined()
  })
})

test("every name in a user's namespace says whose it is", () => {
  for (const names of [WORKFLOW, ACTIVITY, SIGNAL, UPDATE, SESSION_UPDATE, QUERY])
    for (const name of Object.values(names)) expect(name).toMatch(/^firepool\.[a-z][A-Za-z]+$/)
  for (const queue of Object.values(QUEUE)) expect(queue).toMatch(/^firepool(-[a-z]+)?$/)
})
