import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'

/** What a kubelet asks a worker: whether it lives, and whether it serves. */
export interface Health {
  readonly port: number
  close(): Promise<void>
}

/**
 * Serves GET /livez (200 for as long as this process answers at all) and GET /readyz (200, or 503 with a line for each reason), on all
 * addresses of the machine: a kubelet asks by the pod's.
 * @param port 0 is a free one
 * @param notReady why this process does not serve; empty when it does
 * @throws the system's error (EADDRINUSE, EACCES)
 */
export async function serveHealth(port: number, notReady: () => readonly string[]): Promise<Health> {
  const server = createServer(({ method, url }, response) => {
    const [status, text] = method === 'GET' || method === 'HEAD' ? answer(url, notReady) : [405, 'GET it']
    // A connection that is kept would keep this process from its end.
    response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8', connection: 'close' })
    response.end(`${text}\n`)
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, resolve)
  })
  // It speaks of the process, and must not be what keeps it alive.
  server.unref()
  return { port: (server.address() as AddressInfo).port, close: () => close(server) }
}

function answer(url: string | undefined, notReady: () => readonly string[]): [status: number, text: string] {
  const [path] = (url ?? '').split('?')
  if (path === '/livez') return [200, 'lives']
  if (path !== '/readyz') return [404, 'there are /livez and /readyz']
  const reasons = notReady()
  return reasons.length === 0 ? [200, 'ready'] : [503, reasons.join('\n')]
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve())
    server.closeAllConnections()
  })
}
