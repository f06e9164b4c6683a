import type { Connection } from '@temporalio/client'
import { expect, test } from 'vitest'
import { SEARCH_ATTRIBUTE } from '../contract/index.js'
import { ensureSearchAttributes, readFeatures } from './search-attributes.js'

const NAMES = Object.keys(SEARCH_ATTRIBUTE)

/** A server that holds its attributes in a map; `refuse` is what it answers to an addition. */
function fakeServer(registered: Record<string, number>, refuse?: Error) {
  const added: string[] = []
  const connection = {
    operatorService: {
      listSearchAttributes: async () => ({ customAttributes: { ...registered } }),
      addSearchAttributes: async (request: { searchAttributes: Record<string, number> }) => {
        if (refuse !== undefined) throw refuse
        Object.assign(registered, request.searchAttributes)
        added.push(...Object.keys(request.searchAttributes))
      },
    },
    workflowService: { describeNamespace: async () => ({ config: {} }) },
  } as unknown as Connection
  return { connection, added }
}

test('adds only what is missing, once', async () => {
  const { connection, added } = fakeServer({ FirepoolPool: 2, FirepoolLeased: 3, Foreign: 1 })
  const first = await ensureSearchAttributes(connection, 'default')
  expect(first).toEqual({ present: NAMES, missing: [] })
  expect(added.sort()).toEqual(['FirepoolCaller', 'FirepoolState', 'FirepoolTenant', 'FirepoolWarm'])
  await ensureSearchAttributes(connection, 'default')
  expect(added).toHaveLength(4)
})

test('without the right to add, the reason says so and how to add them', async () => {
  const denied = Object.assign(new Error('7 PERMISSION_DENIED'), {
    code: 7,
    details: 'Request unauthorized.',
  })
  const { connection } = fakeServer({ FirepoolPool: 2 }, denied)
  const report = await ensureSearchAttributes(connection, 'prod')
  expect(report.present).toEqual(['FirepoolPool'])
  expect(report.reason).toContain('Request unauthorized.')
  expect(report.reason).toContain(
    'temporal operator search-attribute create -n prod --name FirepoolState --type Keyword',
  )
})

test('an attribute of another type is neither used nor added', async () => {
  const { connection, added } = fakeServer({ FirepoolWarm: 2 })
  const report = await ensureSearchAttributes(connection, 'default')
  expect(report.missing).toEqual(['FirepoolWarm'])
  expect(report.reason).toContain('FirepoolWarm is registered with another type than Int')
  expect(added).not.toContain('FirepoolWarm')
})

test('a namespace that was created a moment ago gets them too', async () => {
  const { connection, added } = fakeServer({})
  const { listSearchAttributes } = connection.operatorService
  const notFound = Object.assign(new Error('5 NOT_FOUND'), { code: 5 })
  let refusals = 2
  connection.operatorService.listSearchAttributes = ((request: object) =>
    refusals-- > 0 ? Promise.reject(notFound) : listSearchAttributes(request)) as typeof listSearchAttributes
  expect(await ensureSearchAttributes(connection, 'default')).toEqual({ present: NAMES, missing: [] })
  expect(added).toHaveLength(NAMES.length)
})

test('attributes that cannot be listed count as missing', async () => {
  const connection = {
    operatorService: {
      listSearchAttributes: () =>
        Promise.reject(Object.assign(new Error('x'), { details: 'unknown method' })),
    },
  } as unknown as Connection
  const features = await readFeatures(connection, 'default')
  expect(features.searchAttributes).toEqual([])
  expect(features.reason).toContain('unknown method')
})
