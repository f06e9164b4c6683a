/** Why nobody answered: no server, a server without the namespace, no worker, or a worker that is too slow. */
export type UnavailableReason = 'NoServer' | 'NoNamespace' | 'NoWorker' | 'NoAnswer'

/**
 * Nobody could be asked, so nothing is known about the pool or the job: neither that it failed nor that it did not.
 * Not a FirepoolError, because no part of Firepool has said anything.
 */
export class FirepoolUnavailableError extends Error {
  override readonly name = 'FirepoolUnavailableError'

  constructor(
    readonly reason: UnavailableReason,
    /** what is wrong */
    readonly why: string,
    /** what to do about it */
    readonly remedy: string,
    options?: ErrorOptions,
  ) {
    super(`${reason}: ${why}; ${remedy}`, options)
  }
}
