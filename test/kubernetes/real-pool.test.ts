import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createFirepoolClient, type FirepoolError } from '../../dist/client/index.js'
import { type ClusterWorld, makeClusterWorld } from '../support/cluster-world.js'
import { IMAGE } from '../support/container-image.js'
import { PLAYED_BY } from '../support/control-plane-objects.js'
import { orSkipped, realNodeObstacle } from '../support/obstacles.js'
import { type RealNode, startRealNode } from '../support/real-node.js'
import { waitUntil } from '../support/wait.js'

/** A pool whose pods are containers of a real kubelet: what the template says is what a kubelet makes of it. */

const obstacle = await realNodeObstacle()

describe.skipIf(obstacle)(orSkipped('a pool on a real node', obstacle), () => {
  let world: ClusterWorld<RealNode>
  beforeAll(async () => {
    world = await makeClusterWorld(startRealNode)
  })
  afterAll(() => world?.close())

  const firepool = () => createFirepoolClient({ client: world.client })
  const profile = (change: { runner?: object; spec?: object; prepare?: string[] } = {}) => ({
    backend: 'kubernetes',
    image: IMAGE.node,
    ...(change.prepare ? { prepare: change.prepare } : {}),
    template: {
      spec: {
        nodeSelector: { [PLAYED_BY.label]: PLAYED_BY.kubelet },
        volumes: [{ name: 'shm', emptyDir: { medium: 'Memory', sizeLimit: '64Mi' } }],
        containers: [
          { name: 'runner', volumeMounts: [{ name: 'shm', mountPath: '/dev/shm' }], ...change.runner },
        ],
        ...change.spec,
      },
    },
  })

  test('jobs run as a user without rights, in the folder of their pod, and do not see the cluster', async () => {
    await world.pool('real', { budget: 1, standby: 1, profile: profile() })
    const session = firepool().session('real', { caller: 'a', ttl: '1m' })
    const first = await session.run({
      command:
        'id -u; pwd; ls /var/run/secrets 2>&1; grep -c NoNewPrivs:.1 /proc/self/status; echo x > kept; echo y > /dev/shm/z',
    })
    const [uid, folder, secrets, noNewPrivileges] = first.stdout.trim().split('\n')
    expect(uid).toBe('1000')
    expect(folder).toMatch(/^\/var\/lib\/firepool\/pod\/real-.*-g1\/work$/)
    expect(secrets).toMatch(/No such file/)
    expect(noNewPrivileges).toBe('1')
    expect(first.exitCode).toBe(0)
    expect((await session.run({ command: 'cat kept /dev/shm/z' })).stdout).toBe('x\ny\n')
    await session.end()
  })

  test('a container over its limit is OOMKilled by that name, with its lease', async () => {
    const resources = { limits: { memory: '192Mi' } }
    await world.pool('hungry', { budget: 1, standby: 1, profile: profile({ runner: { resources } }) })
    const eat = 'const all = []; for (;;) all.push(Buffer.alloc(8_000_000, 1))'
    const session = firepool().session('hungry', { caller: 'a', ttl: '1m' })
    // The kernel takes the largest of the container: a job's process, which is a result, or the runner with its pod.
    const ended = await session.run({ command: ['node', '-e', eat] }).then(
      ({ exitCode, signal }) => ({ exitCode, signal }),
      (error: FirepoolError) => error.problem,
    )
    expect(ended).toEqual(
      expect.objectContaining(
        'code' in ended
          ? { code: 'PodLost', details: expect.objectContaining({ reason: 'OOMKilled' }) }
          : { signal: 'SIGKILL' },
      ),
    )
    await session.end().catch(() => undefined)
  })

  test.each<[string, object, RegExp]>([
    ['ErrImageNeverPull', profile({ runner: { imagePullPolicy: 'Never' } }), /./],
    [
      'PrepareFailed',
      profile({ prepare: ['sh', '-c', 'echo no such package >&2; exit 3'] }),
      /no such package/,
    ],
    [
      'CreateContainerConfigError',
      profile({ runner: { env: [{ name: 'X', valueFrom: { secretKeyRef: { name: 'none', key: 'x' } } }] } }),
      /secret "none" not found/,
    ],
    [
      'Exited',
      profile({ runner: { command: ['node', '-e', 'console.log("bye"); process.exit(4)'] } }),
      /exit code 4; end of its log: bye/,
    ],
  ])('%s is what its callers are told', async (reason, broken, said) => {
    const pool = `broken-${reason.toLowerCase()}`
    const image = reason === 'ErrImageNeverPull' ? 'firepool.test/none:1' : IMAGE.node
    await world.pool(pool, { budget: 1, standby: 0, profile: { ...broken, image } })
    const error = await firepool()
      .runJob({ pool, caller: 'a', job: { command: 'true' } })
      .catch((e: FirepoolError) => e)
    expect(error).toMatchObject({ problem: { code: 'PodStartFailed', details: { reason } } })
    expect((error as FirepoolError).message).toMatch(said)
  })

  test('a pool that is deleted leaves no container', async () => {
    const pool = world.existing('real')
    await firepool().deletePool('real', { force: true })
    await pool.handle.result()
    await waitUntil('its pods are gone', async () => (await world.podsWith('pool', 'real')).length === 0)
  })
})
