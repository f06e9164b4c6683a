import { expect, test } from 'vitest'
import { LABEL } from '../names.js'
import type { ClaimedPod } from './seen-pod.js'
import { SetPlaces } from './set-places.js'

function podOf(node: string, claim = 'firepool-h200-b-1-set-3'): ClaimedPod {
  const labels = { [LABEL.pool]: 'h200', [LABEL.seatSet]: '3' }
  const metadata = { name: 'p', namespace: 'jobs', uid: 'u', resourceVersion: '1', labels }
  const own = { name: 'firepool-gpus', resourceClaimName: claim }
  return {
    metadata,
    spec: { nodeName: node, resourceClaims: [{ name: 'nic', resourceClaimName: 'n' }, own] },
  }
}

test('a set whose next pod has other GPUs, or is on another node, has moved: once, and with both places', () => {
  const places = new SetPlaces()
  expect(places.seen(podOf('a'), ['GPU-2', 'GPU-1'])).toBeNull()
  expect(places.seen(podOf('a'), ['GPU-1', 'GPU-2'])).toBeNull()
  expect(places.seen(podOf('b'), ['GPU-3'])).toBe(
    'seat set 3 of pool h200 has moved: from node a (GPU-1, GPU-2) to node b (GPU-3)',
  )
  expect(places.seen(podOf('b'), ['GPU-3'])).toBeNull()
  expect(places.seen(podOf('b'), ['GPU-4'])).toBe(
    'seat set 3 of pool h200 has moved: from node b (GPU-3) to node b (GPU-4)',
  )
})

test('what pods do not say of their GPUs is no move', () => {
  const places = new SetPlaces()
  expect(places.seen(podOf('a'), [])).toBeNull()
  expect(places.seen(podOf('a'), ['GPU-1'])).toBeNull()
  expect(places.seen(podOf('b'), [])).toBe('seat set 3 of pool h200 has moved: from node a (GPU-1) to node b')
})

test('the set of another claim is another set, and a pod without one has none', () => {
  const places = new SetPlaces()
  const { spec, ...pod } = podOf('b')
  expect(places.seen(podOf('a'), [])).toBeNull()
  expect(places.seen(podOf('b', 'firepool-h200-b-2-set-3'), [])).toBeNull()
  expect(
    places.seen({ ...pod, spec: { ...spec, resourceClaims: [{ name: 'firepool-gpus' }] } }, []),
  ).toBeNull()
  expect(places.seen({ ...pod, spec: { nodeName: 'b' } }, [])).toBeNull()
})
