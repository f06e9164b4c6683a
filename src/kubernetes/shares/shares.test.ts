import { expect, test } from 'vitest'
import type { ApiAnswer, ApiCall, Connection } from '../connection.js'
import { podBody } from '../pod-template.js'
import { Requests } from '../requests.js'
import { Rights } from '../rights.js'
import { gpuOrder } from './share.fixture.js'
import { Shares } from './shares.js'

/** An API server that answers by method and path as it is told: claims in the way and lost rights are had at once. */
class ScriptedConnection implements Connection {
  readonly namespace = 'pools'
  readonly calls: string[] = []
  constructor(readonly answers: Record<string, [status: number, body: object]>) {}

  async send({ method, path }: ApiCall): Promise<ApiAnswer> {
    this.calls.push(`${method} ${path}`)
    const [status, body] = this.answers[`${method} ${path}`] ?? [404, {}]
    return { status, headers: {}, text: JSON.stringify(body) }
  }

  watch(): Promise<null> {
    return Promise.resolve(null)
  }

  reset(): void {}

  close(): void {}
}

const BROKER = 'b0b0b0b0b0'
const OWNER = { name: 'anchor', uid: 'owner-uid' }
const PLACE = { namespace: 'pools', broker: BROKER, brokerPublicKey: 'KEY', owner: OWNER }
const CLAIMS = '/apis/resource.k8s.io/v1/namespaces/pools/resourceclaims'
const CLAIM = `${CLAIMS}/firepool-h200-b0b0b0b0-e8b746c3-set-0`
const CLASSES = '/apis/resource.k8s.io/v1/deviceclasses'
const DRIVERS = '/apis/storage.k8s.io/v1/csidrivers'
const INSTALLED: ScriptedConnection['answers'] = {
  'GET /apis': [200, { groups: [{ versions: [{ groupVersion: 'resource.k8s.io/v1' }] }] }],
  [`GET ${CLASSES}`]: [200, { items: [{ metadata: { name: 'gpu.nvidia.com' } }], metadata: {} }],
  [`GET ${DRIVERS}`]: [200, { items: [{ metadata: { name: 'node.firepool.dev' } }], metadata: {} }],
}
const LABELS = { 'firepool.dev/broker': BROKER, 'firepool.dev/pool': 'h200', 'firepool.dev/generation': '3' }
const EXISTS: [number, object] = [409, { reason: 'AlreadyExists' }]

function world(answers: ScriptedConnection['answers']) {
  const connection = new ScriptedConnection({ ...INSTALLED, ...answers })
  const shares = new Shares(new Requests(connection, { rights: new Rights(undefined, 0) }), BROKER)
  const order = gpuOrder('dra', { seatSet: { index: 0 } })
  return { connection, prepare: () => shares.prepare(order, podBody(order, PLACE)) }
}

const found = (labels: object, ownerUid: string): [number, object] => [
  200,
  { metadata: { name: 'c', uid: 'c', labels, ownerReferences: [{ uid: ownerUid }] } },
]

test('a hundred pods of one set at once look once, and make one claim', async () => {
  const { connection, prepare } = world({ [`POST ${CLAIMS}`]: [201, {}] })
  expect(await Promise.all(Array.from({ length: 100 }, prepare))).toEqual(Array(100).fill(null))
  // Nor does the next one, in a moment.
  expect(await prepare()).toBeNull()
  const asked = ['GET /apis', `GET ${CLASSES}`, `GET ${DRIVERS}`, `POST ${CLAIMS}`]
  expect(connection.calls.sort()).toEqual(asked.sort())
})

test('a claim that is there already is ours, in the way, or of an earlier life of the pool', async () => {
  const exists = { [`POST ${CLAIMS}`]: EXISTS }
  expect(await world({ ...exists, [`GET ${CLAIM}`]: found(LABELS, OWNER.uid) }).prepare()).toBeNull()
  expect(await world({ ...exists, [`GET ${CLAIM}`]: found({}, OWNER.uid) }).prepare()).toMatchObject({
    reason: 'NameTaken',
  })
  await expect(world({ ...exists, [`GET ${CLAIM}`]: found(LABELS, 'before') }).prepare()).rejects.toThrow(
    /is being deleted with the earlier life of its pool/,
  )
})

test('a right that is missing is an error with its name, and asked for again at the next try', async () => {
  const { connection, prepare } = world({ [`POST ${CLAIMS}`]: [403, { reason: 'Forbidden' }] })
  await expect(prepare()).rejects.toMatchObject({ status: 403, asked: { resource: 'resourceclaims' } })
  connection.answers[`POST ${CLAIMS}`] = [201, {}]
  expect(await prepare()).toBeNull()
})

test('what is missing makes no claim; what may not be looked at is no reason to refuse', async () => {
  const { connection, prepare } = world({ [`GET ${CLASSES}`]: [200, { items: [], metadata: {} }] })
  expect(await prepare()).toMatchObject({ reason: 'GpuProviderMissing' })
  expect(connection.calls).not.toContain(`POST ${CLAIMS}`)
  const blind = world({
    [`GET ${CLASSES}`]: [403, {}],
    'GET /apis': [403, {}],
    [`GET ${DRIVERS}`]: [403, {}],
    [`POST ${CLAIMS}`]: [201, {}],
  })
  expect(await blind.prepare()).toBeNull()
})
