// A Firepool worker in a process of its own, for tests that kill it: node worker-process.mjs ADDRESS NAMESPACE DIR [FAULTS]
// FAULTS is JSON, see WorkerFaults in worker-faults.mjs.
import { DefaultLogger, makeTelemetryFilterString, Runtime } from '@temporalio/worker'
import { startFirepoolWorker } from '../../dist/worker.js'
import { wrapWorkers } from './worker-faults.mjs'

const filter = makeTelemetryFilterString({ core: 'ERROR', other: 'ERROR' })
Runtime.install({
  logger: new DefaultLogger('ERROR'),
  // What it reports of a lost attempt is what such tests are about.
  telemetryOptions: { logging: { filter, console: {} } },
})
const [address, namespace, dir, faults] = process.argv.slice(2)
const given = JSON.parse(faults ?? '{}')
wrapWorkers(given, (message) => process.send?.(message))
const { jobSlots, backend } = given
await startFirepoolWorker({
  address,
  namespace,
  dir,
  ...(jobSlots ? { jobSlots } : {}),
  ...(backend ? { backend } : {}),
})
process.send?.('ready')
process.on('disconnect', () => process.exit(0))
