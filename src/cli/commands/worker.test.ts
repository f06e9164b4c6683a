import { expect, test } from 'vitest'
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
