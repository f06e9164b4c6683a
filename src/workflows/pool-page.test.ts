import { expect, it } from 'vitest'
import { aSpec, World } from '../../test/support/broker-world.js'
import type { ShardOrder } from '../contract/pool.js'
import { poolPage } from './pool-page.js'

it('says which of its shards a page is of, and names the others', () => {
  const head = new World({ spec: aSpec({ name: 'cpu', budget: 6, shards: 3 }) })
  const orders: ShardOrder[] = []
  head.tellShard = (order) => {
    orders.push(order)
    return { kind: 'shardTold', report: { v: 1, held: 0, pods: 0, leases: 0, waiting: 0 } }
  }
  head.advance(1_000)
  const page = poolPage(head.state, head.now)
  expect(page).toContain('This is shard 0 of 3')
  expect(page).toContain('The others are pool/cpu.1, pool/cpu.2.')
  const order = orders.find(({ index }) => index === 2)!
  const shard = new World({ spec: order.spec })
  shard.send({ kind: 'shard', order })
  shard.advance(100)
  expect(poolPage(shard.state, shard.now)).toContain('This is shard 2 of pool cpu, whose first is pool/cpu.')
})

it('says which template serves while another one replaces it, and why it does not', () => {
  const world = new World({ spec: aSpec({ name: 'cpu', standby: 1 }) })
  world.advance(3_000)
  const page = () => poolPage(world.state, world.now)
  expect(page()).not.toMatch(/template/)
  const { spec } = world.state
  const apply = (env: Record<string, string>) =>
    world.send({ kind: 'apply', spec: { ...spec, profile: { ...spec.profile, env } } })
  apply({ BROKEN: 'PrepareFailed' })
  world.advance(100)
  expect(page()).toContain('generation 2 replaces 1; ready of 2: 0, earlier pods left: 1. They serve until')
  expect(page()).toContain('standby (generation 1)')
  world.advance(5_000)
  expect(page()).toMatch(
    /Pods of the new template do not start\*\*: 3 failures .*but for pods of generation 1, which serves on/,
  )
  expect(page()).toContain('PrepareFailed')
  expect(page()).toContain('the rollout has stopped')
  apply({})
  world.advance(2_000)
  expect(page()).not.toMatch(/template/)
})

it('says nothing of shards on the page of a whole pool', () => {
  const whole = new World({ spec: aSpec({ name: 'cpu' }) })
  expect(poolPage(whole.state, whole.now)).not.toMatch(/shard/i)
})
