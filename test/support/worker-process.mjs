// A Firepool worker in a process of its own, for tests that kill it: node worker-process.mjs ADDRESS NAMESPACE DIR
import { DefaultLogger, Runtime } from '@temporalio/worker'
import { startFirepoolWorker } from '../../dist/worker.js'

Runtime.install({ logger: new DefaultLogger('ERROR') })
const [address, namespace, dir] = process.argv.slice(2)
await startFirepoolWorker({ address, namespace, dir })
process.send?.('ready')
process.on('disconnect', () => process.exit(0))
