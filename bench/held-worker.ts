/** A worker in a process of its own, whose memory is read: node --expose-gc --import tsx held-worker.ts ADDRESS leases|BUNDLE */
import { Client, Connection } from '@temporalio/client'
import { DefaultLogger, NativeConnection, Runtime, Worker } from '@temporalio/worker'
import { ShardRoutes } from '../dist/activities/shard-routes.js'
import { createTellPool } from '../dist/activities/tell-pool.js'
import { workflowBundle } from '../dist/bundle.js'
import { ACTIVITY, QUEUE } from '../dist/contract/index.js'
import { stubActivities } from '../test/support/stub-broker.js'

Runtime.install({ logger: new DefaultLogger('ERROR') })
const [address, what] = process.argv.slice(2)
const connection = await NativeConnection.connect({ address: address! })
const client = new Client({ connection: await Connection.connect({ address: address! }) })
const stub = stubActivities()
const workflows =
  what === 'leases'
    ? { taskQueue: QUEUE.workflows, workflowBundle: await workflowBundle() }
    : { taskQueue: 'idle', workflowBundle: { codePath: what! } }
const workers = [
  await Worker.create({
    connection,
    ...workflows,
    activities: {
      ...stub.delivery,
      [ACTIVITY.tellPool]: createTellPool(client, new ShardRoutes(client), { maySet: false }),
    },
    maxCachedWorkflows: 2_000,
  }),
  await Worker.create({ connection, taskQueue: QUEUE.broker, activities: stub.broker }),
]
const running = Promise.all(workers.map((worker) => worker.run()))
running.catch(() => process.exit(1))
process.on('message', () => {
  // What is garbage is no cost of what is held.
  for (let i = 0; i < 3; i++) (globalThis as { gc?: () => void }).gc?.()
  process.send!(process.memoryUsage.rss())
})
process.on('disconnect', () => process.exit(0))
process.send!('ready')
