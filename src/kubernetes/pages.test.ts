import { expect, test } from 'vitest'
import type { ApiAnswer, ApiCall, Connection } from './connection.js'
import type { Pod } from './objects.js'
import { pagesOf } from './pages.js'
import { Requests } from './requests.js'

/** Answers lists in pages of two; the last one has the version to watch from. */
class PagedServer implements Connection {
  readonly namespace = 'x'
  readonly calls: ApiCall[] = []

  constructor(private readonly uids: readonly string[]) {}

  async send(call: ApiCall): Promise<ApiAnswer> {
    this.calls.push(call)
    const from = Number(call.query?.continue ?? 0)
    const to = from + 2
    const items = this.uids.slice(from, to).map((uid) => ({
      metadata: { name: uid, uid, resourceVersion: '1', managedFields: [{ manager: 'x' }] },
      spec: { nodeName: 'n', containers: [{ name: 'runner' }] },
    }))
    const more = to < this.uids.length ? { continue: String(to) } : {}
    const text = JSON.stringify({ metadata: { resourceVersion: '7', ...more }, items })
    return { status: 200, headers: {}, text }
  }

  watch(): Promise<null> {
    return Promise.resolve(null)
  }

  reset(): void {}

  close(): void {}
}

const request = { resource: 'pods', path: '/pods', query: { labelSelector: 'a=b' } }

test('a list comes page by page, each asked for when the one before was taken, without what nobody reads', async () => {
  const server = new PagedServer(['a', 'b', 'c'])
  const asked: [calls: number, uids: string[]][] = []
  for await (const { items, resourceVersion } of pagesOf<Pod>(new Requests(server), request)) {
    asked.push([server.calls.length, items.map(({ metadata }) => metadata.uid)])
    expect(items[0]).toEqual({
      metadata: { name: expect.any(String), uid: expect.any(String), resourceVersion: '1' },
      spec: { nodeName: 'n' },
    })
    expect(resourceVersion).toBe('7')
  }
  expect(asked).toEqual([
    [1, ['a', 'b']],
    [2, ['c']],
  ])
  expect(server.calls.map(({ query }) => query)).toEqual([
    { labelSelector: 'a=b', limit: '500' },
    { labelSelector: 'a=b', limit: '500', continue: '2' },
  ])
})
