import { createHash } from 'node:crypto'
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { request } from 'node:http'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Server, ServerCredentials } from '@grpc/grpc-js'
import { SEAT_DRIVER } from '../../dist/contract/index.js'
import { goBuild } from '../../src/server/go-install.js'
import { built } from './built.js'
import type { ControlPlane } from './control-plane.js'
import type { Part } from './keeper.js'
import type { KubeObject } from './kube-api.js'
import { DEPLOY, objectsOf } from './kubectl.js'
import type { NodeProgram, RealNode } from './real-node.js'
import { waitUntil } from './wait.js'

/**
 * The real node agent on a real node, with the kernel's word for who is which pod, and a CSI driver of the kubelet. What is FAKE are the
 * GPUs: ordinary files, and a driver that says what a JSON file says (node-agent/measure/fakenvml). Containers get a device's file by
 * their RuntimeClass, which stands for NVIDIA's container runtime.
 */

const MODULE = fileURLToPath(new URL('../../node-agent', import.meta.url))
const LOG_TAIL_CHARS = 4_000

/** What `GET /status` says, as far as tests read it. */
export interface AgentStatus {
  gpus: {
    uuid: string
    minor: number
    phase: 'free' | 'held' | 'verifying' | 'quarantined'
    pod?: string
    tenant?: string
    verdict?: string
    why?: string
    quarantine?: { reason: string; detail: string }
    selfTested: boolean
  }[]
  waiting: number
  pods: number
  seatEpoch: number
  reports: { kind: string; uuid?: string; pod?: string; detail?: string }[]
  counts: Record<string, number>
}

/** What the fake driver says of a GPU, as far as tests change it. */
export interface FakeGpu {
  used: { bytes: number; error?: string }
  bytesPerOpener: number
}

export interface NodeAgent extends NodeProgram {
  /** path of a device's file, on the node and in containers that have it */
  device(minor: number): string
  uuid(minor: number): string
  /** on the node: each pod's folder with its socket */
  podsFolder: string
  status(): Promise<AgentStatus>
  gpu(minor: number): Promise<AgentStatus['gpus'][number]>
  until(what: string, check: (status: AgentStatus) => boolean): Promise<AgentStatus>
  /** Changes what the driver says. */
  describe(minor: number, change: (gpu: FakeGpu) => void): Promise<void>
  /** what it has logged, a JSON object a line */
  log(): string
  /** Ends what is not of the node. */
  close(): void
}

export interface NodeAgentOptions {
  /** fake devices; default 8 */
  gpus?: number
  /** more arguments of the agent */
  args?: readonly string[]
}

export const deviceName = (minor: number) => `nvidia${minor}`

/** The program in Firepool's cache folder, made there of the sources as they are. */
export async function obtainNodeAgent(): Promise<string> {
  const digest = createHash('sha256').update(process.arch)
  const names = await readdir(MODULE, { recursive: true })
  for (const name of names.filter((n) => /\.(go|mod|sum)$/.test(n) && !n.endsWith('_test.go')).sort()) {
    digest.update(`${name}\n`).update(await readFile(join(MODULE, name)))
  }
  return built(`firepool-node-${digest.digest('hex').slice(0, 12)}`, 'with go build', async (folder) => {
    // Without cgo it has no NVML, which the fake driver does not need.
    await goBuild(['./cmd/firepool-node'], { env: process.env, folder, module: MODULE })
    return join(folder, 'firepool-node')
  })
}

/** Starts the agent on a node that is Ready, and waits until the kubelet knows its CSI driver and all GPUs are measured. */
export async function startNodeAgent(
  { api }: ControlPlane,
  node: RealNode,
  options: NodeAgentOptions = {},
): Promise<NodeAgent> {
  const { gpus = 8 } = options
  const program = await obtainNodeAgent()
  // Short: a socket's path has at most 107 bytes.
  const pods = join(node.folder, 'pods')
  const devices = join(node.folder, 'devices')
  const plugin = join(node.folder, 'kubelet/plugins', SEAT_DRIVER)
  await mkdir(plugin, { recursive: true })
  const state = join(node.folder, 'agent')
  const args = [
    ...['-device=fake', '-identity=cgroup', `-fake-dir=${devices}`, `-fake-gpus=${gpus}`],
    ...[`-state-dir=${state}`, `-pods-dir=${pods}`],
    ...[`-csi-endpoint=${join(plugin, 'csi.sock')}`, `-node-name=${node.name}`, '-listen='],
    ...(options.args ?? []),
  ]
  let part: Part | undefined
  const status = () => operator<AgentStatus>(join(state, 'operator.sock'), '/status')
  const agent: NodeAgent = {
    device: (minor) => join(devices, deviceName(minor)),
    uuid: (minor) => `GPU-fake-${minor}`,
    podsFolder: pods,
    status,
    gpu: async (minor) => (await status()).gpus[minor]!,
    async until(what, check) {
      let last: AgentStatus | undefined
      try {
        return await waitUntil(what, async () => {
          last = await status().catch(() => undefined)
          return last && check(last) ? last : null
        })
      } catch (error) {
        throw new Error(`${(error as Error).message}; the agent's last status: ${JSON.stringify(last)}`)
      }
    },
    async describe(minor, change) {
      const file = join(devices, 'nvml.json')
      const said = JSON.parse(await readFile(file, 'utf8'))
      change(said.gpus[minor])
      await writeFile(`${file}.test`, JSON.stringify(said))
      await rename(`${file}.test`, file)
    },
    log: () => part?.log() ?? '',
    freeze: () => part?.signal('SIGSTOP'),
    thaw: () => part?.signal('SIGCONT'),
    kill: async () => part?.stop('SIGKILL'),
    async start() {
      part = node.run('firepool-node', program, args)
      await waitUntil('the node agent answers', () => {
        if (part?.hasExited()) throw new Error(`the node agent ended: ${agent.log().slice(-LOG_TAIL_CHARS)}`)
        return status().then(Boolean, () => false)
      })
    },
    close: () => registrar.forceShutdown(),
  }
  await agent.start()
  await applyDriver(api)
  const registry = join(node.folder, 'kubelet/plugins_registry')
  const registrar = await register(registry, join(plugin, 'csi.sock'))
  await waitUntil("the kubelet knows the agent's CSI driver", async () => {
    const found = await api.get(`/apis/storage.k8s.io/v1/csinodes/${node.name}`).catch(() => undefined)
    return found?.spec.drivers?.some(({ name }: KubeObject) => name === SEAT_DRIVER) ?? false
  })
  await agent.until('all GPUs are measured', (s) => s.gpus.every(({ phase }) => phase === 'free'))
  return agent
}

/** The CSIDriver as users apply it. */
export async function applyDriver(api: ControlPlane['api']): Promise<void> {
  const text = await readFile(join(DEPLOY, 'node-agent/csidriver.yaml'), 'utf8')
  for (const object of objectsOf(text)) await api.post('/apis/storage.k8s.io/v1/csidrivers', object)
}

/** A JSON answer of the agent's own socket. */
function operator<T>(socketPath: string, path: string): Promise<T> {
  return new Promise((resolve, reject) => {
    const call = request({ socketPath, path, agent: false, timeout: 10_000 }, (answer) => {
      let text = ''
      answer.on('data', (chunk) => {
        text += chunk
      })
      answer.on('error', reject)
      answer.on('end', () =>
        answer.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(text)),
      )
    })
    call.on('timeout', () => call.destroy(new Error('the agent does not answer')))
    call.on('error', reject)
    call.end()
  })
}

/**
 * Tells the kubelet of the driver, in the place of the sidecar node-driver-registrar: a gRPC service of two methods on a socket in the folder that
 * the kubelet watches (pluginregistration.Registration, version 1).
 */
async function register(folder: string, endpoint: string): Promise<Server> {
  const socket = join(folder, `${SEAT_DRIVER}-reg.sock`)
  await rm(socket, { force: true })
  const server = new Server()
  const raw = (bytes: Buffer) => bytes
  const method = (name: string) => ({
    path: `/pluginregistration.Registration/${name}`,
    requestStream: false as const,
    responseStream: false as const,
    requestSerialize: raw,
    requestDeserialize: raw,
    responseSerialize: raw,
    responseDeserialize: raw,
  })
  server.addService(
    { GetInfo: method('GetInfo'), NotifyRegistrationStatus: method('NotifyRegistrationStatus') },
    {
      GetInfo: (_: unknown, answer: (error: null, bytes: Buffer) => void) =>
        answer(null, messageOf(['CSIPlugin', SEAT_DRIVER, endpoint, '1.0.0'])),
      NotifyRegistrationStatus: (_: unknown, answer: (error: null, bytes: Buffer) => void) =>
        answer(null, Buffer.alloc(0)),
    },
  )
  await new Promise<void>((resolve, reject) =>
    server.bindAsync(`unix://${socket}`, ServerCredentials.createInsecure(), (error) =>
      error ? reject(error) : resolve(),
    ),
  )
  return server
}

/** A length of 7 bits is a byte of its own. */
const SHORT_BYTES_MAX = 127

/** A protobuf message whose fields 1, 2, ... are short texts: PluginInfo's type, name, endpoint and supported versions. */
function messageOf(texts: readonly string[]): Buffer {
  const fields = texts.map((text, i) => {
    const bytes = Buffer.from(text)
    if (bytes.length > SHORT_BYTES_MAX) throw new Error(`the length of ${text} takes more than a byte`)
    return Buffer.concat([Buffer.from([((i + 1) << 3) | 2, bytes.length]), bytes])
  })
  return Buffer.concat(fields)
}
