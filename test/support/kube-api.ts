import type { IncomingMessage } from 'node:http'
import { Agent, request } from 'node:https'

/** An object of the Kubernetes API as it comes: a test says which fields it expects. */
// biome-ignore lint/suspicious/noExplicitAny: the API's types are the business of the code that is tested
export type KubeObject = any

export interface KubeCredentials {
  /** https://host:port */
  url: string
  /** PEM */
  ca: string
  cert?: string
  key?: string
  token?: string
}

/** The API server has refused: `code` is the HTTP status, `reason` Kubernetes' own word for it. */
export class KubeError extends Error {
  override readonly name = 'KubeError'
  constructor(
    readonly code: number,
    readonly reason: string,
    message: string,
  ) {
    super(message)
  }
}

const PATCH_TYPE = {
  merge: 'application/merge-patch+json',
  strategic: 'application/strategic-merge-patch+json',
  json: 'application/json-patch+json',
} as const

export interface KubeEvent {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR'
  object: KubeObject
}

/** For a request that nobody answers: the server may be stopped, and a test wants to know. */
const REQUEST_LIMIT_MS = 60_000

/** The tests' own way to the API server: what they prepare and look at does not go through the client that is tested. */
export class KubeApi {
  private readonly agent: Agent

  constructor(private readonly credentials: KubeCredentials) {
    const { ca, cert, key } = credentials
    this.agent = new Agent({
      keepAlive: true,
      ca,
      ...(cert === undefined ? {} : { cert }),
      ...(key === undefined ? {} : { key }),
    })
  }

  get(path: string): Promise<KubeObject> {
    return this.call('GET', path)
  }

  /** Creates an object at the path of its collection. */
  post(path: string, body: KubeObject): Promise<KubeObject> {
    return this.call('POST', path, body)
  }

  patch(path: string, body: KubeObject, type: keyof typeof PATCH_TYPE = 'merge'): Promise<KubeObject> {
    return this.call('PATCH', path, body, PATCH_TYPE[type])
  }

  /** @param options DeleteOptions, such as a grace period */
  delete(path: string, options: KubeObject = {}): Promise<KubeObject> {
    return this.call('DELETE', path, { apiVersion: 'v1', kind: 'DeleteOptions', ...options })
  }

  /** The HTTP status of a path, or undefined when nobody answers. */
  async status(path: string): Promise<number | undefined> {
    return this.send('GET', path).then(
      (answer) => {
        answer.resume()
        return answer.statusCode
      },
      () => undefined,
    )
  }

  /** The body of a path as it comes, such as a log. */
  async text(path: string): Promise<string> {
    return (await this.answer('GET', path)).toString('utf8')
  }

  /**
   * Calls `onEvent` for each change of a collection since `resourceVersion`, until `stop` or until the server ends it.
   * @returns stop, and a promise of its end (with the error, if it was one)
   */
  watch(path: string, resourceVersion: string, onEvent: (event: KubeEvent) => void) {
    const query = new URLSearchParams({ watch: '1', allowWatchBookmarks: 'true', resourceVersion })
    const aborter = new AbortController()
    const ended = this.send('GET', `${path}${path.includes('?') ? '&' : '?'}${query}`, undefined, {
      signal: aborter.signal,
    })
      .then(async (answer) => {
        if (answer.statusCode !== 200) throw failureOf(answer.statusCode ?? 0, await bodyOf(answer))
        let rest = ''
        for await (const bytes of answer.setEncoding('utf8')) {
          const lines = (rest + bytes).split('\n')
          rest = lines.pop() ?? ''
          for (const line of lines) onEvent(JSON.parse(line) as KubeEvent)
        }
      })
      .then(
        () => undefined,
        (error: Error) => (aborter.signal.aborted ? undefined : error),
      )
    return { ended, stop: () => aborter.abort() }
  }

  /** Ends idle connections. */
  close(): void {
    this.agent.destroy()
  }

  private async call(method: string, path: string, body?: KubeObject, type?: string): Promise<KubeObject> {
    return JSON.parse((await this.answer(method, path, body, type)).toString('utf8'))
  }

  private async answer(method: string, path: string, body?: KubeObject, type?: string): Promise<Buffer> {
    const signal = AbortSignal.timeout(REQUEST_LIMIT_MS)
    const answer = await this.send(method, path, body, { signal, ...(type ? { type } : {}) })
    const bytes = await bodyOf(answer)
    const code = answer.statusCode ?? 0
    if (code < 200 || code > 299) throw failureOf(code, bytes)
    return bytes
  }

  private send(
    method: string,
    path: string,
    body?: KubeObject,
    { type = 'application/json', signal }: { type?: string; signal?: AbortSignal } = {},
  ): Promise<IncomingMessage> {
    const { url, token } = this.credentials
    const bytes = body === undefined ? undefined : Buffer.from(JSON.stringify(body))
    return new Promise((resolve, reject) => {
      const sent = request(
        `${url}${path}`,
        {
          method,
          agent: this.agent,
          headers: {
            accept: 'application/json',
            // Without its length Node sends the body of a DELETE as if there were none.
            ...(bytes ? { 'content-type': type, 'content-length': bytes.length } : {}),
            ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
          },
          ...(signal === undefined ? {} : { signal }),
        },
        resolve,
      )
      sent.once('error', reject)
      sent.end(bytes)
    })
  }
}

async function bodyOf(answer: IncomingMessage): Promise<Buffer> {
  const pieces: Buffer[] = []
  for await (const piece of answer) pieces.push(piece as Buffer)
  return Buffer.concat(pieces)
}

function failureOf(code: number, body: Buffer): KubeError {
  const text = body.toString('utf8')
  try {
    const { reason = '', message = text } = JSON.parse(text) as { reason?: string; message?: string }
    return new KubeError(code, reason, `${code} ${reason}: ${message}`)
  } catch {
    return new KubeError(code, '', `${code}: ${text.slice(0, 500)}`)
  }
}
