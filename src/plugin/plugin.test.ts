import { describe, expect, test } from 'vitest'
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
})
