import { readdirSync, rmSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { join } from 'node:path'
import { HTTP_STATUS, type Problem, problem } from '../contract/index.js'
import { makeFolder } from '../make-folder.js'
import type { Signer } from './token.js'

/** A lease, as who holds it knows it. The lease's id is the secret: a pod takes a token only for the lease it is bound to. */
export interface TokenRequest {
  v: 1
  pod: string
  epoch: number
  leaseId: string
}

export interface TokenReply {
  v: 1
  token: string
}

const REQUEST_BYTES_MAX = 4_096
/** the system's limit for the path of a socket, its NUL included */
const SOCKET_PATH_MAX = 108

/** The folder of the token endpoints of all workers that serve a state folder. */
export function endpointFolder(dir: string): string {
  return join(dir, 'tokens')
}

/**
 * The token endpoint of a worker: signs tokens for the leases of callers' own workers on this machine. A socket in a
 * folder that only its owner may enter is the check of who asks.
 * @param dir the state folder
 * @returns stops serving, and removes the socket
 * @throws when the path of the socket is too long for the system, or the folder cannot be written
 */
export async function serveTokens(dir: string, signer: Signer): Promise<() => Promise<void>> {
  const folder = endpointFolder(dir)
  makeFolder(folder, 0o700)
  removeAbandoned(folder)
  const path = join(folder, `${process.pid}.sock`)
  if (Buffer.byteLength(path) >= SOCKET_PATH_MAX)
    throw new Error(
      `the path of a socket has less than ${SOCKET_PATH_MAX} bytes, ${path} has more; use a shorter folder`,
    )
  // A process may have had our number before.
  rmSync(path, { force: true })
  const server = createServer(tokenHandler(signer))
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(path, () => resolve())
  })
  server.unref()
  return () =>
    new Promise((resolve) => {
      server.close(() => resolve())
      server.closeAllConnections()
    })
}

/** Sockets of workers that were killed. */
function removeAbandoned(folder: string): void {
  for (const name of readdirSync(folder)) {
    const pid = Number(/^(\d+)\.sock$/.exec(name)?.[1])
    if (Number.isSafeInteger(pid) && !exists(pid)) rmSync(join(folder, name), { force: true })
  }
}

function exists(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** Whether who asks may have tokens at all; null: yes. Never rejects. */
export type Admission = (req: IncomingMessage) => Promise<Refusal | null>

export interface Refusal {
  /** of HTTP */
  status: number
  problem: Problem
}

/** Answers requests for tokens. @param admit is asked first; default: whoever reaches it may ask */
export function tokenHandler(
  signer: Signer,
  admit: Admission = () => Promise.resolve(null),
): (req: IncomingMessage, res: ServerResponse) => void {
  return (req, res) => void answer(req, res, signer, admit)
}

async function answer(
  req: IncomingMessage,
  res: ServerResponse,
  signer: Signer,
  admit: Admission,
): Promise<void> {
  const refuse = (p: Problem, status: number = HTTP_STATUS[p.code]) => send(res, status, { v: 1, problem: p })
  try {
    if (req.method !== 'POST' || req.url !== '/token')
      return refuse(problem('InvalidRequest', 'the token endpoint takes POST /token'))
    const refusal = await admit(req)
    if (refusal) return refuse(refusal.problem, refusal.status)
    const asked = tokenRequest(await bodyOf(req))
    if (asked === null)
      return refuse(problem('InvalidRequest', 'a token is asked for with { v: 1, pod, epoch, leaseId }'))
    const reply: TokenReply = { v: 1, token: signer(asked.pod, 'lease', asked.epoch, asked.leaseId) }
    send(res, 200, reply)
  } catch {
    res.destroy()
  }
}

function send(res: ServerResponse, status: number, body: unknown): void {
  res.writeHead(status, { 'content-type': 'application/json' })
  res.end(JSON.stringify(body))
}

async function bodyOf(req: IncomingMessage): Promise<unknown> {
  let text = ''
  for await (const chunk of req.setEncoding('utf8')) {
    text += chunk
    if (text.length > REQUEST_BYTES_MAX) throw new Error('too long')
  }
  try {
    return JSON.parse(text)
  } catch {
    return null
  }
}

function tokenRequest(value: unknown): TokenRequest | null {
  if (typeof value !== 'object' || value === null) return null
  const { v, pod, epoch, leaseId } = value as Partial<TokenRequest>
  if (v !== 1 || typeof pod !== 'string' || typeof leaseId !== 'string') return null
  return Number.isSafeInteger(epoch) && pod !== '' && leaseId !== '' ? (value as TokenRequest) : null
}
