/** Serves this project's workflows, beside Firepool's own worker: node dist/worker.js */
import { fileURLToPath } from 'node:url'
import { NativeConnection, Worker } from '@temporalio/worker'
import { NAMESPACE, SERVER, TASK_QUEUE } from './settings.js'

const connection = await NativeConnection.connect(SERVER)
const worker = await Worker.create({
  connection,
  namespace: NAMESPACE,
  taskQueue: TASK_QUEUE,
  workflowsPath: fileURLToPath(new URL('./workflows.js', import.meta.url)),
})
console.log(`polling ${TASK_QUEUE}`)
await worker.run()
await connection.close()
