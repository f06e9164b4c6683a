import { request } from 'node:http'
import { CONTRACT_VERSION, gpuUuids, RUNNER_PORT, type RunnerIdentity } from '../contract/index.js'
import { conditionOf, type Pod } from './objects.js'
import type { Identity } from './observed-pod.js'

/** One question to a runner that is Ready: it answers at once, or is not reached. */
const ANSWER_MS = 2_000
/** Asked again after this while nobody answers. */
const AGAIN_MS = 500
const AGAIN_MS_MAX = 5_000
const BODY_BYTES_MAX = 10_000

interface Asked {
  /** of the container that was asked: another one is another runner */
  container: string
  identity: Identity | undefined
  timer: NodeJS.Timeout | undefined
}

/**
 * Asks each runner once who it is, when its pod has become Ready: only the runner knows its incarnation, and whoever cannot ask it here could not
 * bind it either.
 */
export class ReadyProbe {
  readonly #asked = new Map<string, Asked>()
  readonly #onAnswer: (uid: string) => void
  readonly #ask: (address: string) => Promise<unknown>

  /** @param onAnswer called when what is known of a pod has changed */
  constructor(onAnswer: (uid: string) => void, ask: (address: string) => Promise<unknown> = askRunner) {
    this.#onAnswer = onAnswer
    this.#ask = ask
  }

  /** What is known of the pod's runner; asks it when that is due. */
  identityOf(pod: Pod): Identity | undefined {
    const { uid } = pod.metadata
    const container = containerOf(pod)
    const known = this.#asked.get(uid)
    if (known?.container === container) return known.identity
    const ip = pod.status?.podIP
    const isReady = conditionOf(pod, 'Ready')?.status === 'True'
    if (!isReady || ip === undefined) return known?.identity
    clearTimeout(known?.timer)
    const asked: Asked = { container, identity: undefined, timer: undefined }
    this.#asked.set(uid, asked)
    void this.#question(uid, asked, addressOf(ip), AGAIN_MS)
    return undefined
  }

  /** Whether its runner has said who it is. */
  isKnown(pod: Pod): boolean {
    return this.#asked.get(pod.metadata.uid)?.identity?.kind === 'known'
  }

  forget(uid: string): void {
    clearTimeout(this.#asked.get(uid)?.timer)
    this.#asked.delete(uid)
  }

  close(): void {
    for (const uid of [...this.#asked.keys()]) this.forget(uid)
  }

  async #question(uid: string, asked: Asked, address: string, againMs: number): Promise<void> {
    let identity: Identity
    try {
      const answer = (await this.#ask(address)) as Partial<RunnerIdentity>
      identity =
        answer.v !== CONTRACT_VERSION
          ? { kind: 'otherVersion', v: answer.v }
          : {
              kind: 'known',
              address,
              incarnation: String(answer.incarnation),
              gpus: gpuUuids(String(answer.gpus ?? '')),
            }
    } catch (error) {
      identity = { kind: 'silent', why: (error as NodeJS.ErrnoException).code ?? (error as Error).message }
    }
    if (this.#asked.get(uid) !== asked) return
    asked.identity = identity
    if (identity.kind === 'silent') {
      const next = Math.min(AGAIN_MS_MAX, 2 * againMs)
      asked.timer = setTimeout(() => void this.#question(uid, asked, address, next), againMs)
      asked.timer.unref()
    }
    this.#onAnswer(uid)
  }
}

/** A runner that was started again in the same pod has forgotten everything. */
function containerOf(pod: Pod): string {
  const runner = pod.status?.containerStatuses?.find(({ name }) => name === 'runner')
  return `${pod.status?.podIP ?? ''} ${runner?.containerID ?? ''} ${runner?.restartCount ?? 0}`
}

function addressOf(ip: string): string {
  return `http://${ip.includes(':') ? `[${ip}]` : ip}:${RUNNER_PORT}`
}

function askRunner(address: string): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const call = request(`${address}/ready`, { agent: false, timeout: ANSWER_MS }, (answer) => {
      const chunks: Buffer[] = []
      let bytes = 0
      answer.on('data', (chunk: Buffer) => {
        bytes += chunk.length
        if (bytes > BODY_BYTES_MAX) call.destroy(new Error('what answers is no runner'))
        else chunks.push(chunk)
      })
      answer.on('error', reject)
      answer.on('end', () => {
        try {
          if (answer.statusCode !== 200) throw new Error(`HTTP ${answer.statusCode}`)
          resolve(JSON.parse(Buffer.concat(chunks).toString('utf8')))
        } catch (error) {
          reject(error)
        }
      })
    })
    call.on('timeout', () => call.destroy(Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' })))
    call.on('error', reject)
    call.end()
  })
}
