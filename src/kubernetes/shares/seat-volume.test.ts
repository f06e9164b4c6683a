import { expect, test } from 'vitest'
import { podBody } from '../pod-template.js'
import { gpuOrder } from './share.fixture.js'

const PLACE = { namespace: 'pools', broker: 'b0', brokerPublicKey: 'KEY', owner: { name: 'a', uid: 'u' } }

const template = {
  spec: {
    volumes: [{ name: 'shm', emptyDir: {} }],
    initContainers: [{ name: 'seed', image: 'seed:1' }],
    containers: [
      { name: 'side', image: 'side:1' },
      {
        name: 'runner',
        env: [{ name: 'OWN', value: '1' }],
        volumeMounts: [{ name: 'shm', mountPath: '/shm' }],
      },
    ],
  },
}

const orderWith = (agent: boolean) => {
  const parked = { seatSet: 4, idle: 'park', colocation: true } as const
  const alone = { seatSet: 2, idle: 'hold', colocation: false } as const
  return gpuOrder('dra', { gpu: { agent, count: 2, ...(agent ? parked : alone) }, template })
}

test("the agent's volume is in the runner's container alone, which is told where its socket is and how many GPUs a job takes", () => {
  const body = podBody({ ...orderWith(true), pool: 'h200.1', seatSet: { index: 3 } }, PLACE)
  const { spec } = body
  expect((spec.volumes as object[]).at(-1)).toEqual({
    name: 'firepool-seat',
    // Shards of a pool are one tenant.
    csi: { driver: 'node.firepool.dev', readOnly: true, volumeAttributes: { tenant: 'h200' } },
  })
  expect(body.metadata.annotations).toMatchObject({ 'firepool.dev/seat-volume': 'firepool-seat' })
  const [runner, ...others] = spec.containers as { volumeMounts?: object[]; env?: object[] }[]
  expect(runner!.volumeMounts).toContainEqual({
    name: 'firepool-seat',
    mountPath: '/run/firepool-seat',
    readOnly: true,
  })
  expect(runner!.env!.slice(-4)).toEqual([
    { name: 'FIREPOOL_SEAT_SOCKET', value: '/run/firepool-seat/agent.sock' },
    { name: 'FIREPOOL_SEAT_GPUS', value: '2' },
    { name: 'FIREPOOL_SEAT_IDLE', value: 'park' },
    { name: 'FIREPOOL_SEAT_SET', value: '3' },
  ])
  expect(others).toHaveLength(1)
  expect(JSON.stringify([others, spec.initContainers])).not.toMatch(/firepool-seat|SEAT/)
})

test('a pod in no seat set is not told of one: its pool knows no other GPUs for its jobs', () => {
  expect(JSON.stringify(podBody(orderWith(true), PLACE))).not.toContain('FIREPOOL_SEAT_SET')
})

test('without the agent a pod has nothing of it, as one of a release before there was any', () => {
  const order = orderWith(false)
  const before = podBody(order, PLACE)
  expect(JSON.stringify(before)).not.toMatch(/firepool-seat|FIREPOOL_SEAT/)
  const { agent: _, ...gpu } = order.profile.gpu
  expect(podBody({ ...order, profile: { ...order.profile, gpu: gpu as never } }, PLACE)).toEqual(before)
})
