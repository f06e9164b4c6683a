// A process that starts a production server and waits to be killed: node --import tsx hold-production-server.ts PARTS
import type { ProductionParts } from './production-parts.js'
import { startProductionServer } from './production-server.js'

const { pids } = await startProductionServer(JSON.parse(process.argv[2]!) as ProductionParts)
process.stdout.write(`${JSON.stringify({ pids })}\n`)
setInterval(() => undefined, 60_000)
