import { describe, expect, test } from 'vitest'
import { chooseBackend } from './worker.js'

test('where the pods are: the option, else the environment, else this machine', () => {
  expect(chooseBackend({}, {})).toBe('local')
  expect(chooseBackend({}, { FIREPOOL_BACKEND: 'kubernetes' })).toEqual({
    kind: 'kubernetes',
    namespaces: [],
  })
  expect(chooseBackend({ backend: 'local' }, { FIREPOOL_BACKEND: 'kubernetes' })).toBe('local')
  const given = { backend: 'kubernetes', kubeconfig: 'k', kubeContext: 'c', kubeNamespace: 'a, b' }
  expect(chooseBackend(given, { FIREPOOL_KUBE_NAMESPACE: 'x' })).toEqual({
    kind: 'kubernetes',
    kubeconfig: 'k',
    context: 'c',
    namespaces: ['a', 'b'],
  })
})

test('what would be ignored in silence is refused', () => {
  expect(() => chooseBackend({ backend: 'docker' }, {})).toThrow(/--backend is 'docker'/)
  expect(() => chooseBackend({ kubeNamespace: 'a' }, {})).toThrow(/--kube-namespace is of pods in a cluster/)
})

describe('the token endpoint in a cluster', () => {
  const given = { backend: 'kubernetes', tokenPort: '47101', tokenCallers: 'a/b, c/*', tokenTls: '/tls' }
  const callers = [
    { namespace: 'a', account: 'b' },
    { namespace: 'c', account: null },
  ]

  test('is served when it is said who may ask, by options or the environment', () => {
    expect(chooseBackend(given, {})).toMatchObject({ tokens: { port: 47_101, callers, tlsFolder: '/tls' } })
    const env = { FIREPOOL_TOKEN_PORT: '1', FIREPOOL_TOKEN_CALLERS: 'a/b,c/*', FIREPOOL_TOKEN_TLS: 'none' }
    expect(chooseBackend({ backend: 'kubernetes' }, env)).toMatchObject({
      tokens: { port: 1, callers, tlsFolder: null },
    })
    expect(chooseBackend({ backend: 'kubernetes' }, {})).not.toHaveProperty('tokens')
  })

  test.each([
    [{ tokenPort: undefined }, /--token-port is missing/],
    [{ tokenPort: '0' }, /--token-port is '0'/],
    [{ tokenPort: '1e3' }, /--token-port is '1e3'/],
    [{ tokenCallers: undefined }, /--token-callers is missing/],
    [{ tokenCallers: '*' }, /--token-callers has '\*'/],
    [{ tokenCallers: '*/*' }, /--token-callers has '\*\/\*'/],
    [{ tokenCallers: 'a/b,' }, /--token-callers has ''/],
    [{ tokenTls: undefined }, /--token-tls is missing/],
  ])('is refused half said: %j', (change, said) => {
    expect(() => chooseBackend({ ...given, ...change } as typeof given, {})).toThrow(said)
  })

  test('is refused beside local pods, whose tokens come over a socket', () => {
    expect(() => chooseBackend({ tokenPort: '1' }, {})).toThrow(/--token-port is of pods in a cluster/)
  })
})
