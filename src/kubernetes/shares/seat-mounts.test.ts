import { expect, test, vi } from 'vitest'
import type { ApiAnswer, ApiCall, Connection } from '../connection.js'
import type { Pod } from '../objects.js'
import { Requests } from '../requests.js'
import { SeatMounts } from './seat-mounts.js'

const BORN = '2026-12-01T00:00:00Z'
const LATER = Date.parse(BORN) + 6_000
const MISSING =
  'MountVolume.SetUp failed for volume "firepool-seat" : driver name node.firepool.dev not found'

/** Events as an API server has them; what was asked for is recorded. */
function world(answer: () => ApiAnswer) {
  const asked: ApiCall[] = []
  const connection = {
    namespace: 'jobs',
    async send(call: ApiCall) {
      asked.push(call)
      return answer()
    },
    reset() {},
    close() {},
  } as unknown as Connection
  const told: string[] = []
  return { asked, told, mounts: new SeatMounts(new Requests(connection), (uid) => told.push(uid)) }
}

const events = (...messages: string[]) => ({
  status: 200,
  headers: {},
  text: JSON.stringify({ items: messages.map((message) => ({ metadata: { name: 'e' }, message })) }),
})

function aPod(
  change: { node?: string; status?: Pod['status']; annotations?: Record<string, string> } = {},
): Pod {
  const { node = 'n1', status = { phase: 'Pending' } } = change
  const { annotations = { 'firepool.dev/seat-volume': 'firepool-seat' } } = change
  return {
    metadata: {
      name: 'p',
      namespace: 'jobs',
      uid: 'u1',
      resourceVersion: '1',
      creationTimestamp: BORN,
      annotations,
    },
    spec: { nodeName: node },
    status,
  }
}

test("the kubelet's words about the agent's volume are read once for a node, and not what it says of other volumes", async () => {
  const { mounts, asked, told } = world(() =>
    events('MountVolume.SetUp failed for volume "secrets"', MISSING),
  )
  expect(mounts.of(aPod(), LATER)).toBeUndefined()
  await vi.waitFor(() => expect(told).toEqual(['u1']))
  expect(mounts.of(aPod(), LATER)).toBe(MISSING)
  expect(asked).toHaveLength(1)
  expect(asked[0]).toMatchObject({ path: expect.stringContaining('/api/v1/namespaces/jobs/events') })
  expect(JSON.stringify(asked[0])).toContain('involvedObject.uid')
})

test.each<[string, Pod, number]>([
  ['a pod without the volume', aPod({ annotations: {} }), LATER],
  ['one that began a moment ago', aPod(), Date.parse(BORN) + 1_000],
  [
    'one whose volumes are there',
    aPod({
      status: { phase: 'Pending', conditions: [{ type: 'PodReadyToStartContainers', status: 'True' }] },
    }),
    LATER,
  ],
])('%s asks nothing', (_, pod, nowMs) => {
  const { mounts, asked } = world(() => events(MISSING))
  expect(mounts.of(pod, nowMs)).toBeUndefined()
  expect(asked).toEqual([])
})

test('a worker that may not read events asks once, for all nodes', async () => {
  const { mounts, asked } = world(() => ({ status: 403, headers: {}, text: '{"reason":"Forbidden"}' }))
  mounts.of(aPod(), LATER)
  await vi.waitFor(() => expect(asked).toHaveLength(1))
  await Promise.resolve()
  for (const node of ['n1', 'n2']) expect(mounts.of(aPod({ node }), LATER)).toBeUndefined()
  expect(asked).toHaveLength(1)
})
