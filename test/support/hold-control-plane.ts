// A process that starts a control plane and waits to be killed: node --import tsx hold-control-plane.ts
import { startControlPlane } from './control-plane.js'

const { folder } = await startControlPlane({ nodes: 1 })
process.stdout.write(`${JSON.stringify({ folder })}\n`)
setInterval(() => undefined, 60_000)
