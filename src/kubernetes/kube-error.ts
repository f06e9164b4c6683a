import { shown } from '../contract/index.js'

export type Verb = 'get' | 'list' | 'watch' | 'create' | 'patch' | 'delete'

/** What was asked of the API server, for messages and for the remedy of a missing right. */
export interface Asked {
  verb: Verb
  /** e.g. 'pods' or 'pods/log' */
  resource: string
  namespace?: string | undefined
  name?: string | undefined
}

/** The API server refused, or gave no answer (status 0). Holds neither headers nor bodies of requests. */
export class KubeError extends Error {
  override readonly name = 'KubeError'
  constructor(
    readonly asked: Asked,
    /** HTTP status; 0 when no answer came */
    readonly status: number,
    /** of the answer's Status object, e.g. AlreadyExists; or the system's code */
    readonly reason: string,
    readonly said: string,
    /** as long as the server asked to wait, ms; null when it did not say */
    readonly retryAfterMs: number | null = null,
  ) {
    super(
      `${asked.verb} ${asked.resource}${asked.name ? ` ${asked.name}` : ''}: ${status || 'no answer'} ${reason}: ${said}`,
    )
  }

  /** Whether the same request may succeed in a moment. */
  get isTransient(): boolean {
    if (this.isWebhookDown) return false
    // A quota's own object had changed under the server.
    if (this.status === 409) return this.reason === 'Conflict' && /resourcequota/i.test(this.said)
    return this.status === 0 || this.status === 429 || this.status === 408 || this.status >= 500
  }

  get isWebhookDown(): boolean {
    return this.status >= 500 && /failed calling webhook/.test(this.said)
  }
}

/** The error of an answer that is no success. */
export function answerError(
  asked: Asked,
  status: number,
  headers: Record<string, string>,
  text: string,
): KubeError {
  let reason = ''
  let message = ''
  try {
    const body = JSON.parse(text) as { reason?: unknown; message?: unknown }
    if (typeof body.reason === 'string') reason = body.reason
    if (typeof body.message === 'string') message = body.message
  } catch {
    // A proxy's page, or a log that is no JSON.
    message = shown(text)
  }
  return new KubeError(
    asked,
    status,
    reason || 'Unknown',
    message.slice(0, 1_000),
    retryAfterMs(headers['retry-after']),
  )
}

/** The error of a request that got no answer. */
export function networkError(asked: Asked, error: unknown): KubeError {
  const { cause, name, message } = error as Error & { cause?: { code?: string; message?: string } }
  const code = cause?.code ?? (error as NodeJS.ErrnoException).code ?? name
  // Its message alone: what else such an error carries may hold keys.
  return new KubeError(asked, 0, String(code), String(cause?.message ?? message).slice(0, 300))
}

function retryAfterMs(header: string | undefined): number | null {
  const seconds = Number(header)
  return header !== undefined && Number.isFinite(seconds) && seconds >= 0 ? seconds * 1_000 : null
}

/**
 * Why a pod cannot be ordered, by name and with a remedy; null when it may be tried again. The pool's breaker counts these: what somebody
 * has to mend must not be asked for a hundred times.
 */
export function refusalOf(error: KubeError): { reason: string; message: string } | null {
  if (error.isTransient) return null
  const { asked, status, reason, said } = error
  const where = asked.namespace === undefined ? '' : ` in namespace ${asked.namespace}`
  if (error.isWebhookDown)
    return {
      reason: 'AdmissionUnavailable',
      message: `${said}; mend the webhook, or take its configuration away`,
    }
  if (/exceeded quota/.test(said))
    return {
      reason: 'QuotaExceeded',
      message: `${said}; raise the quota, or lower the pool's budget and its pods' resources`,
    }
  if (/admission webhook .* denied|violates PodSecurity|ValidatingAdmissionPolicy/.test(said))
    return {
      reason: 'AdmissionRefused',
      message: `${said}; change profile.template so that the policy takes it`,
    }
  if (/is being terminated|NamespaceTerminating/.test(said))
    return { reason: 'NamespaceTerminating', message: `${said}; choose another namespace` }
  if (status === 404 && /namespaces? /.test(said))
    return {
      reason: 'NamespaceMissing',
      message: `${said}; create the namespace${where}, or name another one in profile.namespace`,
    }
  if (status === 401)
    return {
      reason: 'Unauthorized',
      message:
        'the API server does not know this worker; look at the credentials of its kubeconfig or service account',
    }
  if (status === 403) return { reason: 'Forbidden', message: forbidden(error) }
  if (status === 400 || status === 422)
    return { reason: 'InvalidPod', message: `${said}; correct profile.template` }
  return {
    reason: reason || 'CreateFailed',
    message: `${said || `the API server answered ${status}`}${where}`,
  }
}

/** Which right is missing: the verb and the resource, as a role is written. */
export function forbidden({ asked, said }: KubeError): string {
  const { verb, resource, namespace } = asked
  const where = namespace === undefined ? 'in the cluster' : `in namespace ${namespace}`
  return `this worker may not ${verb} ${resource} ${where}; give its role the verb "${verb}" on "${resource}" (docs/kubernetes.md has the role)${namespace === undefined ? '' : ', or create the namespace: to an account without rights there a missing one looks the same'}. The API server said: ${said}`
}
