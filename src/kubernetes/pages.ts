import { type KubeObject, withoutBulk } from './objects.js'
import type { Request, Requests } from './requests.js'

/** Objects in one answer of a list: a thousand pods are some megabytes of text, and several times that once they are read. */
const PAGE_OBJECTS = 500

export interface Page<T> {
  /** without their bulk, see withoutBulk */
  items: T[]
  /** to watch from, when it is the last page */
  resourceVersion: string
}

/**
 * The objects of a list, page by page: no more than one page of it is in memory as the API server writes it.
 * @throws KubeError, also when a page has expired meanwhile (410): the list has to begin anew
 */
export async function* pagesOf<T extends KubeObject>(
  requests: Requests,
  request: Omit<Request, 'verb'>,
): AsyncGenerator<Page<T>, void> {
  let next = ''
  do {
    const { items, metadata } = await requests.json<{
      items: T[]
      metadata: { resourceVersion: string; continue?: string }
    }>({
      ...request,
      verb: 'list',
      query: { ...request.query, limit: String(PAGE_OBJECTS), ...(next ? { continue: next } : {}) },
    })
    yield { items: items.map(withoutBulk), resourceVersion: metadata.resourceVersion }
    next = metadata.continue ?? ''
  } while (next !== '')
}
