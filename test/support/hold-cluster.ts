// A process that starts a control plane, and with the argument `node` a real node, and waits to be killed:
// node --import tsx hold-cluster.ts [node]
import { startControlPlane } from './control-plane.js'
import { startRealNode } from './real-node.js'

const cluster = await startControlPlane({ nodes: 1 })
const node = process.argv[2] === 'node' ? await startRealNode(cluster, { gpus: 0 }) : undefined
const folders = [cluster.folder, ...(node ? [node.folder] : [])]
process.stdout.write(`${JSON.stringify({ folders, ip: node?.ip, cgroup: node?.cgroup })}\n`)
setInterval(() => undefined, 60_000)
