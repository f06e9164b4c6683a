import { setTimeout as pause } from 'node:timers/promises'
import type { KubeApi, KubeEvent } from '../test/support/kube-api.js'

const AGAIN_MS = 100

/** How many pods of a pool there are in the cluster, and the most that there were: by a watch of its own, not by what Firepool says. */
export class PodCount {
  private readonly pods = new Set<string>()
  private isStopped = false
  private stopWatch = () => {}
  most = 0
  /** pods that were there at any time */
  created = 0
  /** why what it says is not all */
  problem: string | null = null

  private constructor(
    private readonly api: KubeApi,
    private readonly path: string,
    private resourceVersion: string,
  ) {}

  /** Before the pool is made. @param pools its names, those of its shards too */
  static async open(api: KubeApi, namespace: string, pools: readonly string[]): Promise<PodCount> {
    const selector = encodeURIComponent(`firepool.dev/pool in (${pools.join(',')})`)
    const path = `/api/v1/namespaces/${namespace}/pods?labelSelector=${selector}`
    const { metadata } = await api.get(path)
    const count = new PodCount(api, path, metadata.resourceVersion)
    void count.follow()
    return count
  }

  stop(): void {
    this.isStopped = true
    this.stopWatch()
  }

  /** A server that has too much to do closes watches: the next one goes on from where this one was, and misses nothing. */
  private async follow(): Promise<void> {
    while (!this.isStopped && this.problem === null) {
      const watch = this.api.watch(this.path, this.resourceVersion, (event) => this.see(event))
      this.stopWatch = watch.stop
      await watch.ended
      if (!this.isStopped) await pause(AGAIN_MS)
    }
  }

  private see({ type, object }: KubeEvent): void {
    if (type === 'ERROR') {
      this.problem = `the watch of its pods failed: ${object.message}`
      return
    }
    const { uid, resourceVersion } = object.metadata
    this.resourceVersion = resourceVersion
    if (type === 'DELETED') this.pods.delete(uid)
    if (type !== 'ADDED') return
    this.pods.add(uid)
    this.created++
    this.most = Math.max(this.most, this.pods.size)
  }
}
