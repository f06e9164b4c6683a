import { type JobOutcome, problem, SEAT_LOST, SEAT_SET_SICK } from '../contract/index.js'
import { SEAT_IDLES, type SeatIdle } from './seat-hold.js'

/** Who may use a GPU now is decided outside of the pod: a container cannot see who else is on a device. */

/** The GPUs of one job. */
export interface Seat {
  /** what the job's CUDA_VISIBLE_DEVICES names */
  uuids: readonly string[]
  /**
   * The job's processes are gone: gives the GPUs back, or keeps them for the next job. Never rejects; it goes on trying by itself.
   * @returns why a GPU was lost while the job had it; null: none was, or nobody knows yet
   */
  release(): Promise<string | null>
}

/** Grants seats to the jobs of one pod, one job at a time. */
export interface SeatArbiter {
  /**
   * Waits for the seat of a job.
   * @param epoch the pod's, under which the job was accepted
   * @throws FirepoolError SeatUnavailable, or LeaseRevoked when no job of this pod gets one any more; or the signal's reason. Then the job holds nothing
   */
  take(jobId: string, epoch: number, signal: AbortSignal): Promise<Seat>
  /** Whether these epochs hold a seat that no job uses. */
  holds(epochMax: number): boolean
  /** Whether the pod holds nothing, as far as the node's side was heard to know: what begins now is not taken for a part of a job. */
  hasNone(): boolean
  /** These epochs are over and their processes are gone: gives back what they hold. Never rejects. */
  endEpochs(epochMax: number): Promise<void>
  /** An epoch has begun. @param tenant who is charged for its seats, as the broker says; '' when it does not */
  bound?(epoch: number, tenant: string): void
  /** Calls back when no job of this pod gets a seat any more, and none is there to say so: with the reason, and in words. */
  onUseless?(listener: (reason: string, message: string) => void): void
  /** The authorization header of a call under the pod's lease: what proves, outside of the pod, that its runner asks. */
  heard?(authorization: string): void
}

/** Settings of a runner whose jobs need seats; the runner works without them, and then jobs see what the pod sees. */
export interface SeatEnv {
  /** path of the node agent's socket in the pod */
  FIREPOOL_SEAT_SOCKET?: string
  /** http://HOST:PORT of the node agent, for a pod that cannot have its socket */
  FIREPOOL_SEAT_URL?: string
  /** GPUs for each job, 1 to 16; default 1 */
  FIREPOOL_SEAT_GPUS?: string
  /** between jobs of one lease: `park` (default) gives the seat up, `hold` keeps it, `checkpoint` gives it up and suspends what is on it */
  FIREPOOL_SEAT_IDLE?: string
  /** set in a pod of a seat set: when that is sick its pool has pods on other GPUs */
  FIREPOOL_SEAT_SET?: string
}

/** nodes have at most this many GPUs, and a job runs on one node */
const GPUS_MAX = 16

/**
 * Reads the settings.
 * @returns null when jobs need no seats
 * @throws when they are wrong
 */
export function seatSettings(env: SeatEnv): (SeatAgent & SeatSettings) | null {
  const { FIREPOOL_SEAT_GPUS: count = '1', FIREPOOL_SEAT_IDLE: text } = env
  const agent = seatAgent(env)
  if (agent === null) return null
  const gpus = Number(count)
  if (!Number.isInteger(gpus) || gpus < 1 || gpus > GPUS_MAX)
    throw new Error(
      `FIREPOOL_SEAT_GPUS must be a whole number from 1 to ${GPUS_MAX}, it is ${JSON.stringify(count)}.`,
    )
  const idle = SEAT_IDLES.find((idle) => idle === (text || 'park'))
  if (idle === undefined)
    throw new Error(
      `FIREPOOL_SEAT_IDLE must be one of ${SEAT_IDLES.join(', ')}, it is ${JSON.stringify(text)}.`,
    )
  return { ...agent, gpus, idle, isInSet: Boolean(env.FIREPOOL_SEAT_SET) }
}

export interface SeatSettings {
  /** for each job */
  gpus: number
  idle: SeatIdle
  /** the pool knows which pods have the same GPUs, and has others for a job that gets none here */
  isInSet: boolean
}

/** Where the node agent is. */
export type SeatAgent = { socket: string } | { url: string }

function seatAgent({ FIREPOOL_SEAT_SOCKET: socket, FIREPOOL_SEAT_URL: url }: SeatEnv): SeatAgent | null {
  if (socket) return { socket }
  if (!url) return null
  if (!/^http:\/\/[^/?#@]+$/.test(url) || !URL.canParse(url))
    throw new Error(`FIREPOOL_SEAT_URL must be http://HOST:PORT, it is ${JSON.stringify(url)}.`)
  return { url }
}

/** The job has not started: there was no seat for it. */
export function seatProblem(reason: string, message: string) {
  return problem(
    'SeatUnavailable',
    `No GPU for the job, which has not started: ${message} Run it again, or elsewhere.`,
    { reason },
  )
}

/** The node agent's code for a pod that used a GPU without a grant: it is granted nothing any more. */
export const BANNED = 'UngrantedUse'

/** The job has not started, and no other one will: what the caller's library answers by acquiring another pod. */
export function bannedProblem(message: string) {
  return problem(
    'LeaseRevoked',
    `The pod is refused all GPUs and ends; the job never started there: ${message} Acquire again and send the job there.`,
    { reason: BANNED },
  )
}

/** The job has not started, and none will on these GPUs: it moves to another pod, which is in another set. */
export function sickProblem(message: string) {
  return problem(
    'LeaseRevoked',
    `The pod's seat set has too few GPUs that are well, and the pod ends; the job never started there: ${message} Acquire again and send the job there.`,
    { reason: SEAT_SET_SICK, said: message },
  )
}

/** The node agent's code for what jobs had left on their GPUs and could not be taken off them, or put back: it is killed. */
export const CHECKPOINT_FAILED = 'CheckpointFailed'

/** The job has not started: what earlier ones of its lease kept on their GPUs is gone, so the pod is not what the caller takes it for. */
export function checkpointProblem(why: string) {
  return problem(
    'LeaseRevoked',
    `What jobs of the lease had left on their GPUs is lost, and the pod ends; the job never started there: ${why} Acquire again and send the job there.`,
    { reason: CHECKPOINT_FAILED },
  )
}

/** Whatever the job ended with: its device was gone, by no fault of its own. */
export function seatLostProblem(why: string) {
  return problem(
    'PodLost',
    `The job's GPU was lost while it ran: ${why}. Its pod ends. Run the job again only if it may run twice.`,
    { reason: SEAT_LOST },
  )
}

/** Whether this outcome says that the pod is good for no job any more. @returns why */
export function uselessBy(outcome: JobOutcome): { reason: string; message: string } | null {
  // A pod without a seat set stays when a job got no GPU: the cluster might put another one on the same.
  if (outcome.kind !== 'problem' || outcome.problem.code === 'SeatUnavailable') return null
  const { details, message } = outcome.problem
  const reason = [BANNED, SEAT_LOST, SEAT_SET_SICK, CHECKPOINT_FAILED].find(
    (reason) => details?.reason === reason,
  )
  return reason === undefined ? null : { reason, message: String(details?.said ?? message) }
}
