import type { WatchEvent } from './connection.js'
import type { KubeObject } from './objects.js'

/** What a line of a watch means. */
export type Applied<T> =
  | { kind: 'changed'; object: T }
  | { kind: 'gone'; object: T }
  /** nothing changed, but the server lives and this is how far we are */
  | { kind: 'bookmark' }
  /** what we know is too old to go on from (HTTP 410 inside of the stream): list again */
  | { kind: 'expired' }
  | { kind: 'failed'; status: number; message: string }

/** Objects of one list, kept up to date by a watch. No clock, no I/O. */
export class ObjectStore<T extends KubeObject> {
  readonly #objects = new Map<string, T>()
  /** to watch from; '' before the first list */
  resourceVersion = ''

  get(uid: string): T | undefined {
    return this.#objects.get(uid)
  }

  all(): IterableIterator<T> {
    return this.#objects.values()
  }

  get size(): number {
    return this.#objects.size
  }

  /** Takes a whole list in. @returns what is new or changed, and what is there no more */
  replace(objects: readonly T[], resourceVersion: string): { changed: T[]; gone: T[] } {
    const changed: T[] = []
    const listed = new Set<string>()
    for (const object of objects) {
      const { uid, resourceVersion: version } = object.metadata
      listed.add(uid)
      // What has not changed stays the object that it was: a copy of each of thousands would move for nothing.
      if (this.#objects.get(uid)?.metadata.resourceVersion === version) continue
      changed.push(object)
      this.#objects.set(uid, object)
    }
    const gone: T[] = []
    for (const [uid, object] of this.#objects) {
      if (listed.has(uid)) continue
      this.#objects.delete(uid)
      gone.push(object)
    }
    this.resourceVersion = resourceVersion
    return { changed, gone }
  }

  apply({ type, object }: WatchEvent): Applied<T> {
    if (type === 'ERROR') {
      const {
        code = 0,
        reason = '',
        message = '',
      } = object as { code?: number; reason?: string; message?: string }
      if (code === 410 || reason === 'Expired' || reason === 'Gone') return { kind: 'expired' }
      return { kind: 'failed', status: code, message: message || reason }
    }
    const item = object as T
    this.resourceVersion = item.metadata.resourceVersion
    if (type === 'BOOKMARK') return { kind: 'bookmark' }
    if (type === 'DELETED') {
      this.#objects.delete(item.metadata.uid)
      return { kind: 'gone', object: item }
    }
    this.#objects.set(item.metadata.uid, item)
    return { kind: 'changed', object: item }
  }
}
