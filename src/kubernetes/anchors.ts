import type { KubernetesProfile, PodOrder } from '../contract/index.js'
import { KubeError } from './kube-error.js'
import { anchorName, LABEL, MANAGED_BY } from './names.js'
import type { KubeObject } from './objects.js'
import { ownerReference, type PodPlace } from './pod-template.js'
import { corePath, objectPath, type Requests } from './requests.js'

/** An anchor that somebody deleted takes its pool's pods along; it is made anew when it was not looked at for this long. */
const TRUSTED_MS = 10_000

const APPS = '/apis/apps/v1'
/** A DaemonSet's controller writes to it a few times after each change. */
const RACES_MAX = 10

/**
 * One small object for each pool (or shard) in its namespace, the owner of all its pods: with it they go, also when every worker is gone for
 * good (kubectl delete configmap). And the DaemonSet that pulls a generation's image ahead.
 */
export class Anchors {
  readonly #requests: Requests
  readonly #broker: string
  readonly #log: (line: string) => void
  readonly #known = new Map<string, { uid: string; seenAt: number }>()
  readonly #making = new Map<string, Promise<string>>()
  /** the newest generation whose image is being pulled, by pool */
  readonly #pulled = new Map<string, number>()

  constructor(requests: Requests, broker: string, log: (line: string) => void) {
    this.#requests = requests
    this.#broker = broker
    this.#log = log
  }

  /** The anchor of the pool, made when it is not there. @throws KubeError */
  async of(pool: string, namespace: string): Promise<PodPlace['owner']> {
    const name = anchorName(pool, this.#broker)
    const key = `${namespace}/${name}`
    const known = this.#known.get(key)
    if (known && performance.now() - known.seenAt < TRUSTED_MS) return { name, uid: known.uid }
    // A hundred pods at once need one anchor.
    let making = this.#making.get(key)
    if (!making) {
      making = this.#make(pool, namespace, name).finally(() => this.#making.delete(key))
      this.#making.set(key, making)
    }
    const uid = await making
    this.#known.set(key, { uid, seenAt: performance.now() })
    return { name, uid }
  }

  async #make(pool: string, namespace: string, name: string): Promise<string> {
    const asked = { resource: 'configmaps', namespace } as const
    const read = () =>
      this.#requests.json<KubeObject>({
        ...asked,
        verb: 'get',
        name,
        path: corePath(namespace, 'configmaps', name),
      })
    try {
      const found = await read()
      if (found.metadata.deletionTimestamp === undefined) return found.metadata.uid
    } catch (error) {
      if (!(error instanceof KubeError && error.status === 404)) throw error
    }
    try {
      const made = await this.#requests.json<KubeObject>({
        ...asked,
        verb: 'create',
        path: corePath(namespace, 'configmaps'),
        body: {
          apiVersion: 'v1',
          kind: 'ConfigMap',
          metadata: { name, labels: this.#labels(pool) },
          data: { README: `Owner of the pods of Firepool's pool ${pool}: with it they are deleted.` },
        },
      })
      return made.metadata.uid
    } catch (error) {
      if (error instanceof KubeError && error.status === 409) return (await read()).metadata.uid
      throw error
    }
  }

  /** Ends the anchor, and with it what it still owns. */
  async remove(pool: string, namespace: string): Promise<void> {
    const name = anchorName(pool, this.#broker)
    this.#known.delete(`${namespace}/${name}`)
    this.#pulled.delete(`${namespace}/${name}`)
    try {
      await this.#requests.text({
        verb: 'delete',
        resource: 'configmaps',
        namespace,
        name,
        path: corePath(namespace, 'configmaps', name),
        body: { propagationPolicy: 'Background' },
      })
    } catch (error) {
      if (!(error instanceof KubeError && error.status === 404)) throw error
    }
  }

  /**
   * Pulls the image of a new generation on all nodes that its template allows. Nothing waits for it; what keeps it from happening is logged once for
   * each generation.
   */
  pull(order: PodOrder & { profile: KubernetesProfile }, namespace: string, owner: PodPlace['owner']): void {
    const key = `${namespace}/${owner.name}`
    if (!order.profile.prePull || (this.#pulled.get(key) ?? -1) >= order.generation) return
    this.#pulled.set(key, order.generation)
    this.#applyDaemonSet(order, namespace, owner).catch((error: Error) =>
      this.#log(`the image of pool ${order.pool} is not pulled ahead: ${error.message}`),
    )
  }

  async #applyDaemonSet(
    order: PodOrder & { profile: KubernetesProfile },
    namespace: string,
    owner: PodPlace['owner'],
  ): Promise<void> {
    const { name } = owner
    const asked = { resource: 'daemonsets', namespace, name } as const
    const body = daemonSet(order, name, this.#labels(order.pool), owner)
    for (let tries = 1; ; tries++) {
      try {
        await this.#requests.text({
          ...asked,
          verb: 'create',
          path: objectPath(APPS, namespace, 'daemonsets'),
          body,
        })
        return
      } catch (error) {
        if (!(error instanceof KubeError && error.status === 409)) throw error
      }
      try {
        await this.#replaceOlder(order.generation, body, asked)
        return
      } catch (error) {
        // Its controller wrote its status meanwhile, or it was deleted.
        const isRace = error instanceof KubeError && (error.status === 409 || error.status === 404)
        if (!isRace || tries >= RACES_MAX) throw error
      }
    }
  }

  /** A worker that is late must not pull the image of an older generation again. */
  async #replaceOlder(
    generation: number,
    body: ReturnType<typeof daemonSet>,
    asked: { resource: string; namespace: string; name: string },
  ): Promise<void> {
    const path = objectPath(APPS, asked.namespace, 'daemonsets', asked.name)
    const { metadata } = await this.#requests.json<KubeObject>({ ...asked, verb: 'get', path })
    if (Number(metadata.labels?.[LABEL.generation]) >= generation) return
    await this.#requests.text({
      ...asked,
      verb: 'patch',
      path,
      contentType: 'application/merge-patch+json',
      body: { ...body, metadata: { ...body.metadata, resourceVersion: metadata.resourceVersion } },
    })
  }

  #labels(pool: string): Record<string, string> {
    return { [LABEL.managedBy]: MANAGED_BY, [LABEL.broker]: this.#broker, [LABEL.pool]: pool }
  }
}

/** Where the template's pods may run, there is one pod that has the image, sleeps, and takes next to nothing. */
export function daemonSet(
  { profile, generation }: { profile: KubernetesProfile; generation: number },
  name: string,
  labels: Record<string, string>,
  owner: PodPlace['owner'],
) {
  const spec = (profile.template.spec ?? {}) as Record<string, unknown>
  const placement = Object.fromEntries(
    ['nodeSelector', 'affinity', 'tolerations', 'imagePullSecrets', 'runtimeClassName'].flatMap((field) =>
      spec[field] === undefined ? [] : [[field, spec[field]]],
    ),
  )
  const match = { 'firepool.dev/pulls': name.slice(-63).replace(/^[^a-z0-9]+/, '') }
  return {
    apiVersion: 'apps/v1',
    kind: 'DaemonSet',
    metadata: {
      name,
      labels: { ...labels, [LABEL.generation]: String(generation) },
      ownerReferences: [ownerReference(owner)],
    },
    spec: {
      selector: { matchLabels: match },
      updateStrategy: { type: 'RollingUpdate', rollingUpdate: { maxUnavailable: '100%' } },
      template: {
        metadata: { labels: match },
        spec: {
          ...placement,
          automountServiceAccountToken: false,
          enableServiceLinks: false,
          terminationGracePeriodSeconds: 1,
          securityContext: {
            runAsNonRoot: true,
            runAsUser: 65_534,
            seccompProfile: { type: 'RuntimeDefault' },
          },
          containers: [
            {
              name: 'pull',
              image: profile.image,
              imagePullPolicy: 'IfNotPresent',
              // Any image that can run jobs given as text has a shell.
              command: ['/bin/sh', '-c', 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'],
              resources: { requests: { cpu: '1m', memory: '4Mi' }, limits: { cpu: '50m', memory: '16Mi' } },
              securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } },
            },
          ],
        },
      },
    },
  }
}
