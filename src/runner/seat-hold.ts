/**
 * What becomes of a pod's seat between jobs. Pure: what was granted and what has ended go in, what is to be asked and given back comes out.
 *
 * park  a seat for each job: between jobs the pod holds nothing
 * hold  one seat for an epoch, from its first job that needs one: nothing is held before that job, nor after the epoch
 */

export const SEAT_IDLES = ['park', 'hold'] as const
export type SeatIdle = (typeof SEAT_IDLES)[number]

/** A grant of the node agent's. */
export interface SeatGrant {
  seatEpoch: number
  uuids: readonly string[]
}

interface Held extends SeatGrant {
  /** of the pod's lease */
  epoch: number
  /** a job runs on it */
  isUsed: boolean
}

export class SeatHold {
  readonly #idle: SeatIdle
  #held: Held | null = null
  /** this one and all before it are over */
  #endedEpoch = 0

  constructor(idle: SeatIdle) {
    this.#idle = idle
  }

  /**
   * What a request is for. The agent answers the same request again with the same grant, so a seat that is held is asked for again before
   * each job: one that the agent has taken back meanwhile is then granted anew, and no job runs on a GPU that is another pod's by now.
   */
  requestKey(jobId: string, epoch: number): string {
    return this.#idle === 'hold' ? `epoch ${epoch}` : jobId
  }

  /** What a job may have although the agent is away: holders go on. */
  heldFor(epoch: number): SeatGrant | null {
    return this.#held?.epoch === epoch ? this.#held : null
  }

  /** A job has got its seat. */
  granted(epoch: number, grant: SeatGrant): void {
    this.#held = { ...grant, epoch, isUsed: true }
  }

  /** Its processes are gone. @returns the seat epochs to give back now */
  jobEnded(): number[] {
    if (this.#held === null) return []
    this.#held.isUsed = false
    return this.#idle === 'hold' ? this.#over() : this.#give()
  }

  get isHeld(): boolean {
    return this.#held !== null
  }

  /** Whether epochs up to this one hold a seat that no job uses. */
  isHeldBy(epochMax: number): boolean {
    return this.#held !== null && !this.#held.isUsed && this.#held.epoch <= epochMax
  }

  /** These epochs are over, and their processes are gone but for a job that runs. @returns the seat epochs to give back now */
  epochsEnded(epochMax: number): number[] {
    this.#endedEpoch = Math.max(this.#endedEpoch, epochMax)
    return this.#over()
  }

  #over(): number[] {
    return this.isHeldBy(this.#endedEpoch) ? this.#give() : []
  }

  #give(): number[] {
    const given = this.#held === null ? [] : [this.#held.seatEpoch]
    this.#held = null
    return given
  }
}
