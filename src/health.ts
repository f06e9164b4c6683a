import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { METRICS_CONTENT_TYPE, type Metric, metricsText } from './metrics.js'

/** What a kubelet asks a worker: whether it lives, and whether it serves. */
export interface Health {
  readonly port: number
  close(): Promise<void>
}

/**
 * Serves GET /livez (200 for as long as this process answers at all), GET /readyz (200, or 503 with a line for each reason) and GET /metrics
 * (Prometheus' text), on all addresses of the machine: a kubelet asks by the pod's.
 * @param port 0 is a free one
 * @param notReady why this process does not serve; empty when it does
 * @param metrics what there is to count, at each question
 * @throws the system's error (EADDRINUSE, EACCES)
 */
export async function serveHealth(
  port: number,
  notReady: () => readonly string[],
  metrics: () => readonly Metric[] = () => [],
): Promise<Health> {
  const server = createServer(({ method, url }, response) => {
    const { status, text, type } =
      method === 'GET' || method === 'HEAD' ? answer(url, notReady, metrics) : said(405, 'GET it')
    // A connection that is kept would keep this process from its end.
    response.writeHead(status, { 'content-type': type, connection: 'close' })
    response.end(text)
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, resolve)
  })
  // It speaks of the process, and must not be what keeps it alive.
  server.unref()
  return { port: (server.address() as AddressInfo).port, close: () => close(server) }
}

interface Answer {
  status: number
  text: string
  type: string
}

function answer(
  url: string | undefined,
  notReady: () => readonly string[],
  metrics: () => readonly Metric[],
): Answer {
  const [path] = (url ?? '').split('?')
  if (path === '/livez') return said(200, 'lives')
  if (path === '/metrics') return { status: 200, text: metricsText(metrics()), type: METRICS_CONTENT_TYPE }
  if (path !== '/readyz') return said(404, 'there are /livez, /readyz and /metrics')
  const reasons = notReady()
  return reasons.length === 0 ? said(200, 'ready') : said(503, reasons.join('\n'))
}

function said(status: number, text: string): Answer {
  return { status, text: `${text}\n`, type: 'text/plain; charset=utf-8' }
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve())
    server.closeAllConnections()
  })
}
