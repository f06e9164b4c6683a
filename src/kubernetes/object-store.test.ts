import { expect, test } from 'vitest'
import { ObjectStore } from './object-store.js'

const object = (uid: string, resourceVersion: string) => ({ metadata: { name: uid, uid, resourceVersion } })
const gone = { kind: 'Status', code: 410, reason: 'Expired', message: 'too old resource version: 1 (9)' }

test('a list says what is new, what has changed and what is there no more', () => {
  const store = new ObjectStore()
  const first = object('a', '1')
  expect(store.replace([first, object('b', '1')], '5')).toMatchObject({
    changed: [{}, {}],
    gone: [],
  })
  const { changed, gone } = store.replace([object('a', '1'), object('c', '7')], '9')
  expect(changed).toEqual([object('c', '7')])
  expect(gone).toEqual([object('b', '1')])
  expect(store.resourceVersion).toBe('9')
  expect(store.get('a')).toBe(first)
})

test('a watch goes on from the last thing it said, a bookmark included', () => {
  const store = new ObjectStore()
  store.replace([object('a', '1')], '5')
  expect(store.apply({ type: 'MODIFIED', object: object('a', '6') }).kind).toBe('changed')
  expect(store.get('a')).toEqual(object('a', '6'))
  expect(store.apply({ type: 'BOOKMARK', object: object('', '8') }).kind).toBe('bookmark')
  expect(store.size).toBe(1)
  expect(store.resourceVersion).toBe('8')
  expect(store.apply({ type: 'DELETED', object: object('a', '9') }).kind).toBe('gone')
  expect(store.size).toBe(0)
})

test('410 inside of the stream means: list again', () => {
  const store = new ObjectStore()
  store.replace([object('a', '1')], '5')
  expect(store.apply({ type: 'ERROR', object: gone })).toEqual({ kind: 'expired' })
  expect(store.apply({ type: 'ERROR', object: { code: 500, message: 'etcd' } })).toEqual({
    kind: 'failed',
    status: 500,
    message: 'etcd',
  })
  // Nothing is forgotten for that.
  expect(store.size).toBe(1)
})

test('a pod that was deleted and made anew under its name is another one', () => {
  const store = new ObjectStore<ReturnType<typeof object>>()
  const again = { metadata: { name: 'a', uid: 'a2', resourceVersion: '7' } }
  store.replace([object('a', '1')], '5')
  expect(store.replace([again], '8')).toEqual({ changed: [again], gone: [object('a', '1')] })
})
