import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createFirepoolClient } from '../../dist/client/index.js'
import { FirepoolError } from '../../dist/contract/index.js'
import { processesWith } from '../support/cli.js'
import { type ClusterWorld, makeClusterWorld, ON_PROCESSES } from '../support/cluster-world.js'
import type { KubeObject } from '../support/kube-api.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { type ProcessKubelet, startProcessKubelet } from '../support/process-kubelet.js'
import { waitUntil } from '../support/wait.js'

/** A whole pool on Temporal: its pods are of a real API server, and the runner in each is the one that images have. */

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('a pool of pods of a cluster', obstacle), () => {
  let world: ClusterWorld<ProcessKubelet>
  beforeAll(async () => {
    world = await makeClusterWorld(startProcessKubelet, { workerProcess: true })
  })
  afterAll(() => world?.close())

  const profile = (change: object = {}) => ({ ...ON_PROCESSES, ...change })
  const pods = (pool: string) => world.podsWith('pool', pool)
  const path = (kind: string) => `/api/v1/namespaces/${world.cluster.namespace}/${kind}`
  const remove = (pod: string) => world.cluster.api.delete(`${path('pods')}/${pod}`)
  const firepool = () => createFirepoolClient({ client: world.client })

  test('a job runs in a pod, the next one on the same pod, and whom it serves stands on it', async () => {
    await world.pool('jobs', { budget: 2, standby: 1, profile: profile() })
    const session = firepool().session('jobs', { caller: 'agent-7', ttl: '1m' })
    const first = await session.run({ command: 'echo $FIREPOOL_POD; echo kept > note' })
    const second = await session.run({ command: 'echo $FIREPOOL_POD; cat note' })
    const pod = first.stdout.trim()
    expect(second.stdout).toBe(`${pod}\nkept\n`)
    const noted = await waitUntil('the note', async () => {
      const found = (await pods('jobs')).find(({ metadata }) => metadata.name === `${pod}-g1`)
      return found?.metadata.annotations['firepool.dev/caller'] === 'agent-7' && found
    })
    expect(noted.metadata.annotations['firepool.dev/epoch']).toBe('1')
    await session.end()
  })

  test('a pod that is deleted under its lease is lost by that name, and replaced', async () => {
    await world.pool('lost', { budget: 1, standby: 1, profile: profile() })
    const session = firepool().session('lost', { caller: 'a', ttl: '1m' })
    const pod = (await session.run({ command: 'echo $FIREPOOL_POD' })).stdout.trim()
    const mark = 'job-that-loses-its-pod'
    const running = session.run({ command: 'sleep 600', env: { MARK: mark } })
    // Before it has started there its loss would be no failure: it would be run elsewhere.
    await waitUntil('it runs', () => processesWith(mark).length > 0)
    await remove(`${pod}-g1`)
    const error = await running.catch((e: unknown) => e)
    expect(error).toBeInstanceOf(FirepoolError)
    expect((error as FirepoolError).problem).toMatchObject({ code: 'PodLost' })
    const again = (await session.run({ command: 'echo $FIREPOOL_POD' })).stdout.trim()
    expect(again).not.toBe(pod)
    await session.end()
  })

  test('a pool whose pods cannot start says why within seconds, with the end of what they wrote', async () => {
    const broken = profile({ prepare: ['sh', '-c', 'echo no such package >&2; exit 3'] })
    const error = await world.pool('broken', { budget: 1, standby: 0, profile: broken }).then(() =>
      firepool()
        .runJob({ pool: 'broken', caller: 'a', job: { command: 'true' } })
        .catch((e: unknown) => e),
    )
    expect(error).toMatchObject({ problem: { code: 'PodStartFailed', details: { reason: 'PrepareFailed' } } })
    expect((error as FirepoolError).message).toContain('no such package')
  })

  test('a pool without room for its pods shows what they wait for while they wait', async () => {
    const nowhere = profile({ template: { spec: { nodeSelector: { nowhere: 'yes' } } } })
    const pool = await world.pool('nowhere', { budget: 1, standby: 0, profile: nowhere })
    const asked = firepool()
      .runJob({ pool: 'nowhere', caller: 'a', acquireTimeout: '6s', job: { command: 'true' } })
      .catch((e: unknown) => e)
    const { starting } = await pool.until('it says so', (status) => status.starting !== undefined)
    expect(starting).toMatchObject([{ reason: 'Unschedulable', pods: 1 }])
    const error = (await asked) as FirepoolError
    expect(error.problem).toMatchObject({ code: 'QueueTimeout' })
    expect(error.message).toMatch(/Unschedulable/)
  })

  test('a pool of local pods is refused by name here', async () => {
    await world.pool('local', { budget: 1, standby: 0 })
    const error = await firepool()
      .runJob({ pool: 'local', caller: 'a', job: { command: 'true' } })
      .catch((e: unknown) => e)
    expect(error).toMatchObject({ problem: { details: { reason: 'BackendNotServed' } } })
  })

  test('after a total loss of workers the next one adopts what runs: the job, its pod, and what became of the others', async () => {
    const pool = await world.pool('adopted', { budget: 2, standby: 1, profile: profile() })
    const session = firepool().session('adopted', { caller: 'a', ttl: '5m' })
    const pod = (await session.run({ command: 'echo $FIREPOOL_POD' })).stdout.trim()
    const running = session.run({ command: 'sleep 4; echo still $FIREPOOL_POD' })
    await pool.until('a standby is there again', ({ standby, leases }) => standby.ready === 1 && leases === 1)
    const standby = (await pods('adopted'))
      .map(({ metadata }) => metadata.name)
      .find((name) => name !== `${pod}-g1`)
    await world.killWorker()
    // Nobody hears of this one.
    await remove(standby)
    await world.startWorker()
    expect((await running).stdout).toBe(`still ${pod}\n`)
    await pool.until(
      'the lost standby is replaced',
      (status) => status.standby.ready === 1 && status.podsCreated >= 3,
    )
    const { breaker } = await pool.status()
    expect(breaker.failures).toBe(0)
    await session.end()
  })

  test('deleting a pool removes its pods and what was kept for it', async () => {
    const pool = await world.pool('ends', { budget: 2, standby: 2, profile: profile() })
    expect(await pods('ends')).toHaveLength(2)
    await firepool().deletePool('ends', { force: true })
    await pool.handle.result()
    expect(await pods('ends')).toEqual([])
    const { items } = await world.cluster.api.get(path('configmaps'))
    expect(items.filter(({ metadata }: KubeObject) => metadata.name.startsWith('firepool-ends'))).toEqual([])
  })
})
