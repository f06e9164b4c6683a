import { createHash } from 'node:crypto'
import { rmSync } from 'node:fs'
import { connect, createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

const RETRY_MS = 250

export interface ProcessLockOptions {
  /** called about every `RETRY_MS` while another process holds the lock */
  onWait?: (waitedMs: number) => void
  signal?: AbortSignal
}

/**
 * Runs `action` while no other process of this machine runs one under the same name.
 *
 * The lock is a listening socket: the kernel lets go of it when its holder dies, however it dies, so there
 * is no stale lock file to judge. Processes in different network namespaces do not see each other's lock;
 * what they write under it must still be put in place by an atomic rename.
 */
export async function withProcessLock<T>(
  name: string,
  action: () => Promise<T>,
  options: ProcessLockOptions = {},
): Promise<T> {
  const server = await acquire(name, options)
  try {
    return await action()
  } finally {
    await new Promise<void>((done) => server.close(() => done()))
  }
}

async function acquire(name: string, options: ProcessLockOptions): Promise<Server> {
  const address = lockAddress(name)
  const startedMs = performance.now()
  for (;;) {
    options.signal?.throwIfAborted()
    const server = await tryListen(address)
    if (server !== undefined) return server
    if (await removeStaleSocket(address)) continue
    options.onWait?.(performance.now() - startedMs)
    await sleep(RETRY_MS, undefined, options.signal === undefined ? {} : { signal: options.signal })
  }
}

/** Linux has socket names outside the file system; elsewhere a socket file in the temporary folder. */
function lockAddress(name: string): string {
  const user = process.getuid?.() ?? 0
  const digest = createHash('sha256').update(`${user}:${name}`).digest('hex').slice(0, 32)
  return process.platform === 'linux'
    ? `\0firepool-lock-${digest}`
    : join(tmpdir(), `firepool-${digest.slice(0, 16)}.lock`)
}

function tryListen(address: string): Promise<Server | undefined> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy())
    server.once('error', (error: NodeJS.ErrnoException) =>
      error.code === 'EADDRINUSE' ? resolve(undefined) : reject(error),
    )
    server.listen(address, () => {
      // The holder's work keeps the process alive, not the lock.
      server.unref()
      resolve(server)
    })
  })
}

/** A socket file outlives a killed holder; nobody answers on it then. Never happens on Linux. */
function removeStaleSocket(address: string): Promise<boolean> {
  if (address.startsWith('\0')) return Promise.resolve(false)
  return new Promise((resolve) => {
    const socket = connect(address)
    socket.once('connect', () => {
      socket.destroy()
      resolve(false)
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED') rmSync(address, { force: true })
      resolve(error.code === 'ECONNREFUSED' || error.code === 'ENOENT')
    })
  })
}
