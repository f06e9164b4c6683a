import { describe, expect, test } from 'vitest'
import { ACTIVITY, type ShortInput } from '../contract/index.js'
import { FirepoolPlugin, shortJobActivities, shortJobsInWorkflows } from './index.js'

const own = async () => 'own'

describe('short jobs in a worker of the caller', () => {
  test('as a plugin: its activities beside those that are there, and what tells its workflows so', () => {
    const plugin = new FirepoolPlugin({ dir: '/nowhere' })
    const { activities } = plugin.configureWorker({ taskQueue: 'mine', activities: { own } })
    expect(activities).toMatchObject({ own, 'firepool.runShort': expect.any(Function) })
    const bundled = plugin.configureBundler({ workflowsPath: 'w', workflowInterceptorModules: ['traces'] })
    expect(bundled.workflowInterceptorModules).toEqual(['traces', shortJobsInWorkflows])
  })

  test('by hand: the same activities as a plain object', () => {
    const { activities } = new FirepoolPlugin().configureWorker({ taskQueue: 'mine' })
    expect(Object.keys(shortJobActivities({ dir: '/nowhere' }))).toEqual(Object.keys(activities!))
  })

  test.each([
    [{}, {}, /no worker of Firepool answers in/],
    [
      {},
      { FIREPOOL_TOKEN_URL: 'http://127.0.0.1:1' },
      /the token of this pod cannot be read from \/var\/run/,
    ],
    [{ tokenUrl: 'http://127.0.0.1:1', tokenFile: '/no/token' }, {}, /read from \/no\/token/],
    // Whoever names a folder means it.
    [{ dir: '/nowhere' }, { FIREPOOL_TOKEN_URL: 'http://127.0.0.1:1' }, /answers in \/nowhere/],
  ])('asks the folder or the cluster for tokens: %j with %j', async (options, env, why) => {
    const activities = shortJobActivities(options, { HOME: '/nowhere', ...env })
    const grant = { v: 1 as const, pod: 'p', epoch: 1, leaseId: 'l', address: 'http://127.0.0.1:1' }
    const input = {
      v: 1,
      grant: { ...grant, pool: 'x', incarnation: 'i', hit: 'warm', waitedMs: 0 },
      jobId: 'j/1',
    }
    const job = { command: 'true' }
    const said = await activities[ACTIVITY.runShort]({ ...input, job } as unknown as ShortInput)
    expect(said).toMatchObject({ kind: 'goesOn', posted: false, why: expect.stringMatching(why) })
  })
})
