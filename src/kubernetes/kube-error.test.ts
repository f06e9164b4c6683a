import { expect, test } from 'vitest'
import { answerError, networkError, refusalOf } from './kube-error.js'

const CREATE = { verb: 'create', resource: 'pods', namespace: 'pools' } as const
const status = (code: number, reason: string, message: string, headers: Record<string, string> = {}) =>
  answerError(CREATE, code, headers, JSON.stringify({ kind: 'Status', code, reason, message }))

test.each<[string, number, string, string, RegExp]>([
  [
    'QuotaExceeded',
    403,
    'Forbidden',
    'pods "a" is forbidden: exceeded quota: q, requested: pods=1',
    /raise the quota/,
  ],
  [
    'Forbidden',
    403,
    'Forbidden',
    'pods is forbidden: User "w" cannot create resource "pods" in API group "" in the namespace "pools"',
    /may not create pods in namespace pools; give its role the verb "create" on "pods"/,
  ],
  [
    'AdmissionRefused',
    403,
    'Forbidden',
    'admission webhook "v.x" denied the request: no',
    /change profile\.template/,
  ],
  [
    'AdmissionRefused',
    403,
    'Forbidden',
    'pods "a" is forbidden: violates PodSecurity "restricted:latest": x',
    /template/,
  ],
  [
    'AdmissionUnavailable',
    500,
    'InternalError',
    'Internal error: failed calling webhook "v.x": refused',
    /webhook/,
  ],
  ['NamespaceMissing', 404, 'NotFound', 'namespaces "pools" not found', /create the namespace/],
  [
    'NamespaceTerminating',
    403,
    'Forbidden',
    'unable to create: namespace pools is being terminated',
    /another/,
  ],
  [
    'InvalidPod',
    400,
    'BadRequest',
    'strict decoding error: unknown field "spec.foo"',
    /correct profile\.template/,
  ],
  ['InvalidPod', 422, 'Invalid', 'Pod "a" is invalid: spec.containers[0].image: Required value', /correct/],
  ['Unauthorized', 401, 'Unauthorized', 'Unauthorized', /credentials/],
])('%s by name: HTTP %i %s', (reason, code, why, message, remedy) => {
  const refusal = refusalOf(status(code, why, message))
  expect(refusal?.reason).toBe(reason)
  expect(refusal?.message).toMatch(remedy)
})

test.each([
  [429, 'TooManyRequests', 'slow down'],
  [500, 'InternalError', 'etcdserver: request timed out'],
  [503, 'ServiceUnavailable', 'apiserver not ready'],
  [409, 'Conflict', 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'],
])('HTTP %i %s is a matter of time', (code, reason, message) => {
  expect(refusalOf(status(code, reason, message))).toBeNull()
})

test('what the server asks to wait is known; a page of a proxy is no answer of Kubernetes', () => {
  expect(status(429, 'TooManyRequests', '', { 'retry-after': '3' }).retryAfterMs).toBe(3_000)
  expect(status(429, 'TooManyRequests', '').retryAfterMs).toBeNull()
  expect(answerError(CREATE, 502, {}, '<html>bad gateway</html>')).toMatchObject({
    status: 502,
    isTransient: true,
  })
})

test('no answer at all keeps the code alone: such an error may hold the keys of its connection', () => {
  const cause = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED', key: 'SECRET' })
  const error = networkError(CREATE, new TypeError('fetch failed', { cause }))
  expect(error).toMatchObject({ status: 0, reason: 'ECONNREFUSED', isTransient: true })
  expect(JSON.stringify(error) + error.stack + error.message).not.toContain('SECRET')
})
