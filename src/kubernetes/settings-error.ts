/** The client cannot be loaded, or the kubeconfig not be used: why, and what to do. Never a value of it. */
export class KubernetesSettingsError extends Error {
  override readonly name = 'KubernetesSettingsError'
  constructor(
    readonly why: string,
    readonly remedy: string,
  ) {
    super(`${why}; ${remedy}`)
  }
}
