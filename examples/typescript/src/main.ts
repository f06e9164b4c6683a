/** Runs the agent and the verifier once and prints what came of it: node dist/main.js [pool] */
import { randomUUID } from 'node:crypto'
import { Client, Connection } from '@temporalio/client'
import { NAMESPACE, SERVER, TASK_QUEUE } from './settings.js'
import type { agent, verify } from './workflows.js'

const [pool = 'cpu'] = process.argv.slice(2)
const connection = await Connection.connect(SERVER)
const client = new Client({ connection, namespace: NAMESPACE })

const steps = await client.workflow.execute<typeof agent>('agent', {
  taskQueue: TASK_QUEUE,
  workflowId: `agent-${randomUUID()}`,
  args: [pool, 'agent-1', ['echo hello > f', 'cat f']],
})
const verdict = await client.workflow.execute<typeof verify>('verify', {
  taskQueue: TASK_QUEUE,
  workflowId: `verify-${randomUUID()}`,
  args: [pool, 'add = lambda a, b: a + b', 'assert add(1, 2) == 3'],
})
console.log(JSON.stringify({ steps, verdict }, null, 2))
await connection.close()
