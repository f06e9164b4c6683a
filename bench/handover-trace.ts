import { createReadStream } from 'node:fs'

/** When what happened in a handover: jobs, runner and agent say it on one clock, the kernel's. */

/** What a handover is made of, in the order in which it happens. */
export const PHASES = ['drain', 'exit', 'handBack', 'verify', 'grant', 'fork', 'firstDeviceCall'] as const
export type Phases = Record<(typeof PHASES)[number], number>

/** Milliseconds since the epoch, of one handover. */
export interface Moments {
  /** the pool was told that the holder's lease is over */
  told: number
  /** the holder's runner kills its job */
  killed: number
  /** the last process of the job is gone */
  gone: number
  /** the agent hears of the release */
  released: number
  /** the agent has measured the GPU empty, and decides */
  decided: number
  /** the agent's answer to the other pod, with its file on disk */
  answered: number
  /** the first instruction of the other job */
  began: number
  /** it has the device open */
  opened: number
}

export function phasesOf(at: Moments): Phases {
  return {
    drain: at.killed - at.told,
    exit: at.gone - at.killed,
    handBack: at.released - at.gone,
    verify: at.decided - at.released,
    grant: at.answered - at.decided,
    fork: at.began - at.answered,
    firstDeviceCall: at.opened - at.began,
  }
}

/** Everything but the job's own exit. */
export const brokerOverheadMs = (phases: Phases) =>
  PHASES.reduce((sum, phase) => sum + (phase === 'exit' ? 0 : phases[phase]), 0)

/** Set anew for each sample: Node's fine clock does not follow the system's when that is corrected. */
let offsetMs = 0

/** Waits for the next tick of the system's clock, a millisecond at most. */
export function setClock(): void {
  const from = Date.now()
  let now = from
  while (now === from) now = Date.now()
  offsetMs = now - performance.now()
}

/** Milliseconds since the epoch, with parts of them. */
export const wallMs = () => offsetMs + performance.now()

/** Of a shell's $EPOCHREALTIME, seconds. */
export const msOfEpoch = (text: string) => Number(text) * 1_000

/** A job that holds the device; it tells the pipe `trace` in its folder, which nobody holds open any more when it is gone. */
export const holding = (device: string) =>
  `b=$EPOCHREALTIME; exec 4>trace; exec 3<${device}; echo "$b $EPOCHREALTIME" >&4; exec sleep 3600`

/** Reads a job's pipe. */
export function follow(pipe: string): {
  said: Promise<{ began: number; opened: number }>
  gone: Promise<number>
} {
  const stream = createReadStream(pipe, 'utf8')
  let text = ''
  const said = new Promise<{ began: number; opened: number }>((resolve, reject) => {
    stream.on('error', reject)
    stream.on('data', (chunk) => {
      text += chunk
      const [, began, opened] = /^(\S+) (\S+)\n/.exec(text) ?? []
      if (began && opened) resolve({ began: msOfEpoch(began), opened: msOfEpoch(opened) })
    })
  })
  const gone = new Promise<number>((resolve) => stream.on('end', () => resolve(wallMs())))
  return { said, gone }
}

interface AgentLine {
  time: string
  msg: string
  pod?: string
  decided?: string
  request?: string
}

/** RFC 3339 with nanoseconds, of which JavaScript reads three digits. */
export function msOfTime(text: string): number {
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? '0'
  return Date.parse(text.replace(/\.\d+/, '')) + Number(`0.${fraction}`) * 1_000
}

/** What the agent's log says of a grant to a pod since then; null while it has not said all. */
export function grantMoments(text: string, since: number, to: string) {
  const lines = linesSince(text, since)
  const granted = lines.find(({ msg, pod }) => msg === 'granted' && pod === to)
  const answered = lines.find(
    ({ msg, pod, request }) => msg === 'answered' && pod === to && request === 'POST /v1/seats',
  )
  if (!granted?.decided || !answered) return null
  return { decided: msOfTime(granted.decided), answered: msOfTime(answered.time) }
}

/** When the agent heard that a pod gives its seat back; null while it has not. */
export function releasedAt(text: string, since: number, from: string): number | null {
  const released = linesSince(text, since).find(({ msg, pod }) => msg === 'released' && pod === from)
  return released ? msOfTime(released.time) : null
}

function linesSince(text: string, since: number): AgentLine[] {
  return text
    .split('\n')
    .filter((line) => line.startsWith('{') && line.endsWith('}'))
    .map((line) => JSON.parse(line) as AgentLine)
    .filter(({ time }) => msOfTime(time) >= since)
}

/** When the runner began to end the job that it had, by its log; null while it has not said it. */
export function killedAt(text: string, since: number): number | null {
  const times = [...text.matchAll(/ (\S+Z) runner \S+: job \S+ is ended: revoked/g)].map(([, time]) =>
    Date.parse(time!),
  )
  // Its clock has whole milliseconds.
  return times.find((at) => at >= Math.floor(since)) ?? null
}
