import { connect } from 'node:net'
import type { KubeObject } from './kube-api.js'

/** What a probe waits for an answer, as a kubelet's. */
const PROBE_LIMIT_MS = 1_000

/**
 * Whether a container answers its probe now; one that is neither by HTTP nor by TCP is never answered.
 * @param container its spec, for ports that have a name
 */
export function isAnswered(probe: KubeObject, container: KubeObject, podIp: string): Promise<boolean> {
  const { httpGet, tcpSocket } = probe
  if (httpGet) {
    const { path = '/', scheme = 'HTTP', host = podIp } = httpGet
    return isOk(`${scheme.toLowerCase()}://${host}:${portOf(container, httpGet.port)}${path}`)
  }
  if (tcpSocket) return listens(tcpSocket.host ?? podIp, portOf(container, tcpSocket.port))
  return Promise.resolve(false)
}

function portOf(container: KubeObject, wanted: number | string): number {
  const named = container.ports?.find(({ name }: KubeObject) => name === wanted)
  return Number(named?.containerPort ?? wanted)
}

async function isOk(url: string): Promise<boolean> {
  const answer = await fetch(url, { signal: AbortSignal.timeout(PROBE_LIMIT_MS) }).catch(() => undefined)
  await answer?.body?.cancel()
  return answer?.ok ?? false
}

function listens(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: PROBE_LIMIT_MS })
    const say = (yes: boolean) => () => {
      socket.destroy()
      resolve(yes)
    }
    socket.once('connect', say(true))
    socket.once('error', say(false))
    socket.once('timeout', say(false))
  })
}
