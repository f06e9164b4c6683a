/**
 * What becomes of a pod's seat between jobs. Pure: what was granted and what has ended go in, what is to be asked and given back comes out.
 *
 * park        a seat for each job: between jobs the pod holds nothing
 * hold        one seat for an epoch, from its first job that needs one: nothing is held before that job, nor after the epoch
 * checkpoint  a seat for each job, as park: but what jobs of the epoch have left on the GPUs lives on in between, suspended off them
 */

export const SEAT_IDLES = ['park', 'hold', 'checkpoint'] as const
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
  /** what jobs of the epoch left on the GPUs of this seat is off them, and the seat given back */
  #suspended: { epoch: number; seatEpoch: number } | null = null
  /** what jobs of the epoch left on GPUs is lost */
  #lost: { epoch: number; why: string } | null = null
  /** seats that were given back so far */
  #given = 0
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
    if (this.#idle === 'park') return jobId
    // The next seat is another request: only one that could not be suspended is still held, and asked for again.
    return this.#idle === 'hold' ? `epoch ${epoch}` : `epoch ${epoch}, seat ${this.#given}`
  }

  /** What a job may have although the agent is away: holders go on, but for those whose processes are suspended. */
  heldFor(epoch: number): SeatGrant | null {
    return this.#held?.epoch === epoch && !this.isSuspended(epoch) ? this.#held : null
  }

  /** A job has got its seat. */
  granted(epoch: number, grant: SeatGrant): void {
    this.#held = { ...grant, epoch, isUsed: true }
  }

  /** Its processes are gone. @returns the seat epochs to give back now */
  jobEnded(): number[] {
    if (this.#held === null) return []
    this.#held.isUsed = false
    return this.#idle === 'park' ? this.#give() : this.#over()
  }

  get isHeld(): boolean {
    return this.#held !== null
  }

  /** The seat that no job uses now, when what is on it is to be suspended. */
  get toSuspend(): { epoch: number; seatEpoch: number } | null {
    return this.#idle === 'checkpoint' && this.#held?.isUsed === false ? this.#held : null
  }

  /** What is left on this seat is off it, and the seat was given back with that. No effect when it was given back meanwhile. */
  suspended({ epoch, seatEpoch }: { epoch: number; seatEpoch: number }): void {
    if (this.#held?.seatEpoch !== seatEpoch) return
    this.#give()
    this.#suspended = { epoch, seatEpoch }
  }

  /** @returns this seat epoch, to be given back now; nothing when it was meanwhile */
  giveBack(seatEpoch: number): number[] {
    return this.#held?.seatEpoch === seatEpoch ? this.#give() : []
  }

  /** Whether a job of this epoch has to have what is suspended back on its GPUs first. */
  isSuspended(epoch: number): boolean {
    return this.#suspended?.epoch === epoch
  }

  /** Nothing is suspended any more. */
  resumed(): void {
    this.#suspended = null
  }

  /** What jobs of this epoch left on GPUs is lost: no later one of it finds what it expects. */
  lost(epoch: number, why: string): void {
    this.#lost = { epoch, why }
  }

  /** Why what jobs of this epoch left on GPUs is lost; null: it is not. */
  whyLost(epoch: number): string | null {
    return this.#lost?.epoch === epoch ? this.#lost.why : null
  }

  /** Whether epochs up to this one hold a seat that no job uses, or have something suspended. */
  isHeldBy(epochMax: number): boolean {
    return this.#idleSeats(epochMax).length > 0
  }

  /** These epochs are over, and their processes are gone but for a job that runs. @returns the seat epochs to give back now */
  epochsEnded(epochMax: number): number[] {
    this.#endedEpoch = Math.max(this.#endedEpoch, epochMax)
    return this.#over()
  }

  /** Given back again, the seat of what is suspended says that it has ended. */
  #over(): number[] {
    const over = this.#idleSeats(this.#endedEpoch)
    if (this.#held !== null && over.includes(this.#held.seatEpoch)) this.#give()
    if (this.#suspended !== null && over.includes(this.#suspended.seatEpoch)) this.#suspended = null
    return over
  }

  #idleSeats(epochMax: number): number[] {
    const held = this.#held?.isUsed === false ? this.#held : null
    return [this.#suspended, held].flatMap((one) =>
      one !== null && one.epoch <= epochMax ? [one.seatEpoch] : [],
    )
  }

  #give(): number[] {
    const given = this.#held === null ? [] : [this.#held.seatEpoch]
    this.#held = null
    this.#given++
    return given
  }
}
