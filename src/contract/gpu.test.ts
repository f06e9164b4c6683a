import { expect, test } from 'vitest'
import { gpuUuids } from './gpu.js'

const A = 'GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448'
const B = 'GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76'
const SLICE = 'MIG-eff38abe-f5f7-5f75-a0d1-6d4c1dbfb7c1'

test.each<[string, string, string[]]>([
  ['a list', `${A},${B}`, [A, B]],
  ['one of two replicas', `${A}::3,${A}::5`, [A]],
  ['indexes', '0,1', []],
  ['a word', 'all', []],
  ['a listing', `GPU 0: NVIDIA H200 (UUID: ${B})\nGPU 1: NVIDIA H200 (UUID: ${A})\n`, [A, B]],
  // The GPU that a slice is of is listed with it, and is not the container's.
  ['a slice', `GPU 0: NVIDIA A100 (UUID: ${A})\n  MIG 1g.10gb Device 0: (UUID: ${SLICE})\n`, [SLICE]],
  ['a slice as older drivers write it', `MIG-${A}/7/0`, [`MIG-${A}/7/0`]],
  ['more than a node has', Array.from({ length: 113 }, (_, i) => A.slice(0, -3) + (100 + i)).join(), []],
])('UUIDs of %s', (_what, text, uuids) => {
  expect(gpuUuids(text)).toEqual(uuids)
})
