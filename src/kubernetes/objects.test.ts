import { expect, test } from 'vitest'
import { withoutBulk } from './objects.js'

test('a pod is kept with all that its state is read from, and without what runs in it', () => {
  const metadata = { name: 'a', uid: 'u', resourceVersion: '1', annotations: { x: 'y' } }
  const status = {
    phase: 'Running' as const,
    podIP: '10.0.0.1',
    containerStatuses: [{ name: 'runner', restartCount: 0 }],
  }
  const pod = {
    metadata: { ...metadata, managedFields: [{ manager: 'firepool' }] },
    spec: {
      nodeName: 'n',
      resourceClaims: [{ name: 'gpu' }],
      containers: [{ name: 'runner' }],
      volumes: [],
      tolerations: [],
    },
    status,
  }
  expect(withoutBulk(pod)).toEqual({
    metadata,
    spec: { nodeName: 'n', resourceClaims: [{ name: 'gpu' }] },
    status,
  })
})

test('a node is kept without its images, an error of a watch as it is', () => {
  const node = { metadata: { name: 'n', uid: 'u', resourceVersion: '1' }, spec: { unschedulable: true } }
  expect(withoutBulk({ ...node, status: { conditions: [], images: [{ names: ['x'] }] } })).toEqual({
    ...node,
    status: { conditions: [] },
  })
  const error = { kind: 'Status', code: 410, status: 'Failure' }
  expect(withoutBulk(error as object)).toEqual(error)
})
