import { expect, test } from 'vitest'
import { FirepoolError, problem } from '../contract/index.js'
import { reportOf } from './failure.js'
import { explainMissingPool, missingPoolRemedy } from './missing-pool.js'

const server = { address: '127.0.0.1:7233', namespace: 'default', because: 'of the running firepool dev' }
const missing = new FirepoolError(
  problem('PoolNotFound', "there is no pool 'cpv'; create it", { pool: 'cpv' }),
)

test('a pool that is not there: where it was looked for, what was meant, and an exit code of its own', async () => {
  const error = await explainMissingPool(missing, { poolNames: async () => ['cpu', 'warm'] }, server)
  expect(reportOf(error)).toEqual({
    code: 'PoolNotFound',
    origin: 'caller',
    why: "there is no pool 'cpv' (namespace default at 127.0.0.1:7233, of the running firepool dev)",
    remedy: "did you mean 'cpu'? Or create it with firepool pool apply -f FILE (pools here: cpu, warm)",
    details: { pool: 'cpv' },
    exitCode: 68,
  })
})

test('names that cannot be had are left out, and other errors stay as they are', async () => {
  const poolNames = () => Promise.reject(new Error('gone'))
  expect(reportOf(await explainMissingPool(missing, { poolNames }, server)).remedy).toBe(
    'create it with firepool pool apply -f FILE, or look at firepool pool list',
  )
  const other = new FirepoolError(problem('QueueFull', 'x'))
  expect(await explainMissingPool(other, { poolNames }, server)).toBe(other)
})

test('no pool at all, none that is close, and very many', () => {
  expect(missingPoolRemedy('cpu', [])).toMatch(/no pool here at all: create it .*without --db-file forgets/)
  expect(missingPoolRemedy('cpu', ['h200'])).toBe(
    'create it with firepool pool apply -f FILE, or use another (pools here: h200; a firepool dev without --db-file forgets its pools when it ends)',
  )
  const many = Array.from({ length: 50 }, (_, at) => `pool-${at}`)
  expect(missingPoolRemedy('zzzzzz', many)).toMatch(/pool-9 and 40 more; /)
})
