import { createServer, type Server } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { HTTP_STATUS, problem } from '../contract/index.js'
import { RunnerApp, type RunnerOptions } from './app.js'

/** an idle connection stays longer than the client keeps it, so that the client is the one that closes */
const KEEP_ALIVE_MS = 10 * 60_000
/** a client whose machine vanished is noticed by the system's probes, the first one after this */
const PROBE_MS = 15_000

/** A runner that listens. */
export interface Runner {
  app: RunnerApp
  /** http://host:port */
  address: string
  /** ends all jobs and all connections */
  close(): Promise<void>
}

/**
 * Starts a runner.
 * @param listen host:port, port 0 lets the system choose
 * @throws when it cannot listen there
 */
export async function startRunner(listen: string, options: RunnerOptions): Promise<Runner> {
  const { host, port } = parseListen(listen)
  const app = new RunnerApp(options)
  const server = createServer(
    { noDelay: true, keepAlive: true, keepAliveInitialDelay: PROBE_MS },
    (req, res) => {
      if (app.fence.state === 'draining') res.shouldKeepAlive = false
      app.handle(req, res)
    },
  )
  app.onDrained = () => server.closeIdleConnections()
  server.keepAliveTimeout = KEEP_ALIVE_MS
  server.requestTimeout = 0 // an upload takes as long as it takes
  server.on('clientError', (_error: Error, socket: Socket) => answerGarbage(socket))
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen({ host, port }, () => {
      server.off('error', reject)
      resolve()
    })
  })
  return { app, address: addressOf(server), close: () => close(server, app) }
}

/**
 * Host and port of a listen address such as 127.0.0.1:0 or [::1]:8080; also fd00::1:8080, because Kubernetes has no way to put
 * brackets around the address of a pod only when it is one of IPv6.
 * @throws when it is not one
 */
export function parseListen(listen: string): { host: string; port: number } {
  const match = /^(?:\[([^\]]+)\]|(.*)):(\d{1,5})$/.exec(listen)
  const port = Number(match?.[3])
  if (match === null || port > 65_535)
    throw new Error(`FIREPOOL_LISTEN is ${JSON.stringify(listen)}; give host:port, such as 127.0.0.1:0`)
  return { host: match[1] ?? (match[2] || '0.0.0.0'), port }
}

function addressOf(server: Server): string {
  const { address, family, port } = server.address() as AddressInfo
  return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`
}

async function close(server: Server, app: RunnerApp): Promise<void> {
  await app.close()
  const closed = new Promise<void>((resolve) => server.close(() => resolve()))
  server.closeIdleConnections()
  // What was answered a moment ago is on its way; nobody is waited for longer than this.
  const timer = setTimeout(() => server.closeAllConnections(), 250)
  await closed
  clearTimeout(timer)
}

function answerGarbage(socket: Socket): void {
  if (!socket.writable) return
  const body = JSON.stringify({ v: 1, problem: problem('InvalidRequest', 'This is not an HTTP request.') })
  socket.end(
    `HTTP/1.1 ${HTTP_STATUS.InvalidRequest} Bad Request\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  )
}
