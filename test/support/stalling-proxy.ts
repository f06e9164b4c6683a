import { readFile, writeFile } from 'node:fs/promises'
import { connect, createServer, type Socket } from 'node:net'

/** TCP to another port of the loopback, whose connections may fall silent: open, and nothing comes through any more. */
export interface StallingProxy {
  port: number
  /** Every connection that is open now is silent for good; later ones work. @returns how many there were */
  stall(): number
  close(): Promise<void>
}

export async function startStallingProxy(targetPort: number): Promise<StallingProxy> {
  const open = new Set<{ client: Socket; server: Socket }>()
  const listener = createServer((client) => {
    const server = connect(targetPort, '127.0.0.1')
    const pair = { client, server }
    open.add(pair)
    for (const [from, to] of [
      [client, server],
      [server, client],
    ] as const) {
      from.on('data', (bytes) => to.write(bytes))
      from.on('error', () => {})
      from.on('close', () => {
        open.delete(pair)
        to.destroy()
      })
    }
  })
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve))
  return {
    port: (listener.address() as { port: number }).port,
    stall() {
      for (const { client, server } of open) {
        client.removeAllListeners('data')
        server.removeAllListeners('data')
        // What comes is read and thrown away, as a network does that drops packets.
        client.resume()
        server.resume()
      }
      return open.size
    },
    close() {
      for (const { client, server } of open) {
        client.destroy()
        server.destroy()
      }
      return new Promise((resolve) => listener.close(() => resolve()))
    },
  }
}

/** A copy of a kubeconfig of our control plane that goes through another port of the loopback. */
export async function kubeconfigThrough(port: number, kubeconfig: string): Promise<string> {
  const config = JSON.parse(await readFile(kubeconfig, 'utf8'))
  config.clusters[0].cluster.server = `https://127.0.0.1:${port}`
  const path = `${kubeconfig}.${port}`
  await writeFile(path, JSON.stringify(config), { mode: 0o600 })
  return path
}
