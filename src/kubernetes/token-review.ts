import type { Requests } from './requests.js'

/** A user of the cluster may have any number of tokens; what comes of one that is not asked for again is nobody's. */
interface TokenReviewStatus {
  authenticated?: boolean
  user?: { username?: string }
  audiences?: string[]
}

/**
 * The user whom the API server takes a token for; null when it is no token of its, has expired, or is for another audience.
 * @throws KubeError when it cannot be asked
 */
export async function userOfToken(
  requests: Requests,
  token: string,
  audience: string,
): Promise<string | null> {
  const { status = {} } = await requests.json<{ status?: TokenReviewStatus }>({
    verb: 'create',
    resource: 'tokenreviews',
    path: '/apis/authentication.k8s.io/v1/tokenreviews',
    // Who asks waits for a second or two, and can do without.
    once: true,
    body: {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenReview',
      spec: { token, audiences: [audience] },
    },
  })
  // An authenticator that knows of no audiences answers with none: a token for the API server itself would pass.
  const isOurs = status.authenticated === true && status.audiences?.includes(audience) === true
  return isOurs ? (status.user?.username ?? null) : null
}
