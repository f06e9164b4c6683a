/** The environment or the profile file does not say how to connect: what is wrong, and what to do. Never a value of a secret. */
export class ConnectionSettingsError extends Error {
  override readonly name = 'ConnectionSettingsError'
  constructor(
    readonly why: string,
    readonly remedy: string,
  ) {
    super(`${why}; ${remedy}`)
  }
}
