import { randomBytes, timingSafeEqual } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A runner posts at most 256 KiB of output at once; base64 and JSON make a third more of it. */
const BODY_BYTES_MAX = 1024 * 1024
const PATH_BYTES = 32

export interface OutputListener {
  /** for JobSpec.outputTo; whoever does not know its path cannot write to our output */
  readonly url: string
  close(): Promise<void>
}

/**
 * Listens on the loopback for the chunks that a runner posts.
 * @param take answers when the chunk has been taken: false refuses it, a promise holds the runner back
 */
export async function listenForOutput(
  take: (chunk: unknown) => boolean | Promise<boolean>,
): Promise<OutputListener> {
  const path = Buffer.from(`/${randomBytes(PATH_BYTES).toString('hex')}`)
  const server = createServer((request, response) => {
    answer(request, path, take).then(
      (status) => end(response, status),
      () => end(response, 400),
    )
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, '127.0.0.1', resolve)
  })
  const { port } = server.address() as AddressInfo
  return { url: `http://127.0.0.1:${port}${path.toString()}`, close: () => close(server) }
}

async function answer(
  request: IncomingMessage,
  path: Buffer,
  take: (chunk: unknown) => boolean | Promise<boolean>,
): Promise<number> {
  const asked = Buffer.from(request.url ?? '')
  if (asked.length !== path.length || !timingSafeEqual(asked, path)) return 404
  if (request.method !== 'POST') return 405
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of request) {
    bytes += (chunk as Buffer).length
    if (bytes > BODY_BYTES_MAX) return 413
    chunks.push(chunk as Buffer)
  }
  return (await take(JSON.parse(Buffer.concat(chunks).toString('utf8')))) ? 204 : 409
}

function end(response: ServerResponse, status: number): void {
  response.writeHead(status, status >= 400 ? { connection: 'close' } : {}).end()
}

async function close(server: Server): Promise<void> {
  await new Promise<void>((resolve) => {
    server.close(() => resolve())
    server.closeAllConnections()
  })
}
