import type { IncomingMessage, ServerResponse } from 'node:http'
import { FirepoolError, HTTP_STATUS, type Problem, problem } from '../contract/index.js'

/** a JSON body larger than this is not read to its end */
export const BODY_BYTES_MAX = 4 * 1024 * 1024

/** Reads a JSON body with plain events: on the path of a warm job an async iterator is measurable. */
export function withJson(
  req: IncomingMessage,
  onError: (error: unknown) => void,
  handle: (body: unknown, bytes: number) => Promise<void> | void,
): void {
  const chunks: Buffer[] = []
  let bytes = 0
  const onData = (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes <= BODY_BYTES_MAX) {
      chunks.push(chunk)
      return
    }
    req.off('data', onData)
    req.off('end', onEnd)
    chunks.length = 0
    onError(
      new FirepoolError(
        problem(
          'InvalidRequest',
          `The body is larger than ${BODY_BYTES_MAX} bytes. Send large data by PUT /files.`,
        ),
      ),
    )
    req.resume()
  }
  const onEnd = () => {
    try {
      const handled = handle(parseJson(chunks), bytes)
      if (handled !== undefined) handled.catch(onError)
    } catch (error) {
      onError(error)
    }
  }
  req.on('data', onData)
  req.on('end', onEnd)
  req.on('error', () => {}) // a client that goes away mid-body has asked for nothing
}

function parseJson(chunks: Buffer[]): unknown {
  const text = chunks.length === 1 ? chunks[0]!.toString('utf8') : Buffer.concat(chunks).toString('utf8')
  try {
    return JSON.parse(text)
  } catch {
    throw new FirepoolError(problem('InvalidRequest', 'The body is not JSON. Send one JSON object in UTF-8.'))
  }
}

export function replyProblem(res: ServerResponse, why: Problem): void {
  reply(res, HTTP_STATUS[why.code], { v: 1, problem: why })
}

export function reply(res: ServerResponse, status: number, body: unknown): void {
  send(res, status, JSON.stringify(body))
}

export function send(res: ServerResponse, status: number, body: string): void {
  if (res.destroyed || res.headersSent) return
  res.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) })
  res.end(body)
}
