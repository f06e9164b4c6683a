/**
 * Why nobody answered: no server, a server that does not let us in or has no such namespace, no worker, or a worker that is
 * too slow; or nobody was asked, because the answer could not be read.
 */
export type UnavailableReason =
  | 'NoServer'
  | 'NotAuthorized'
  | 'NoNamespace'
  | 'NoWorker'
  | 'NoAnswer'
  | 'CodecFailed'

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

/** @param server whom we asked, for the message */
export function notAuthorized(server: string, cause: unknown): FirepoolUnavailableError {
  return new FirepoolUnavailableError(
    'NotAuthorized',
    `${server} does not let us in`,
    'look at TEMPORAL_API_KEY, the client certificate, and whether they are for this namespace',
    { cause },
  )
}

/** What the server has of a pool is encoded, and nothing given to this client decodes it. */
export function unreadable(pool: string, encoding: string): FirepoolUnavailableError {
  return new FirepoolUnavailableError(
    'CodecFailed',
    `what is known of pool ${pool} is encoded (${encoding}), and no codec of this client decodes it; nothing was asked of it`,
    'give the client the data converter of the Firepool worker (firepool: --data-converter or FIREPOOL_DATA_CONVERTER)',
  )
}

/** A workflow of a pool fails its tasks: only what mends that helps. */
export function stuck(workflowId: string, cause: unknown): FirepoolUnavailableError {
  return new FirepoolUnavailableError(
    'NoAnswer',
    `workflow ${workflowId} answers nobody, because its workflow task fails`,
    "look at it in the Temporal UI, and at the worker's log; it goes on by itself once a worker can run it, and if none ever can: temporal workflow terminate, then apply the pool again",
    { cause },
  )
}
