import { expect, test } from 'vitest'
import { KubeError } from './kube-error.js'
import { Rights } from './rights.js'

const LIST = { verb: 'list', resource: 'pods', namespace: 'a' } as const
const forbidden = (asked: KubeError['asked'] = LIST) => new KubeError(asked, 403, 'Forbidden', 'cannot')

test('one that was never heard of is waited for 10 s, one that was held for a minute; a success begins anew', () => {
  let now = 0
  const rights = new Rights(() => now)
  const after = (ms: number, error = forbidden()) => {
    now += ms
    return rights.mayComeBack(error)
  }
  expect([after(0), after(9_999), after(1), after(60_000)]).toEqual([true, true, false, false])
  rights.granted(LIST)
  expect([after(60_000), after(59_999), after(1)]).toEqual([true, true, false])
  // Each verb, resource and namespace is a right of its own.
  expect(after(0, forbidden({ ...LIST, namespace: 'b' }))).toBe(true)
  expect(after(10_000, forbidden({ ...LIST, namespace: 'b' }))).toBe(false)
  expect(after(0, forbidden({ ...LIST, verb: 'watch' }))).toBe(true)
})

test('what is refused for another reason is no missing right', () => {
  const rights = new Rights(() => 0)
  expect(rights.mayComeBack(new KubeError(LIST, 403, 'Forbidden', 'exceeded quota: q'))).toBe(false)
  expect(rights.mayComeBack(new KubeError(LIST, 404, 'NotFound', 'none'))).toBe(false)
})
