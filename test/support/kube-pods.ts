import { PLAYED_BY } from './control-plane-objects.js'
import type { KubeApi, KubeObject } from './kube-api.js'
import { waitUntil } from './wait.js'

/** Pods of tests, as the tests' own client makes and sees them. */

export interface PodOptions {
  /** without their prefix: { 'ready-after': '2s' }; see test/control-plane/stages.yaml */
  does?: Record<string, string>
  gpus?: number
  /** parts of the pod's spec */
  spec?: KubeObject
  /** parts of its container */
  container?: KubeObject
}

/** A pod of one container, for a node that this player plays. */
export function podObject(name: string, player: string, options: PodOptions = {}): KubeObject {
  const { does = {}, gpus = 0, spec = {}, container = {} } = options
  const annotations = Object.entries(does).map(([key, value]) => [`firepool.test/${key}`, value])
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, annotations: Object.fromEntries(annotations) },
    spec: {
      nodeSelector: { [PLAYED_BY.label]: player },
      restartPolicy: 'Never',
      terminationGracePeriodSeconds: 2,
      containers: [
        {
          name: 'main',
          image: 'registry.test/none:1',
          ...(gpus > 0 ? { resources: { limits: { 'nvidia.com/gpu': String(gpus) } } } : {}),
          ...container,
        },
      ],
      ...spec,
    },
  }
}

/** The pods of a namespace. */
export class Pods {
  readonly path: string

  constructor(
    readonly api: KubeApi,
    readonly namespace: string,
  ) {
    this.path = `/api/v1/namespaces/${namespace}/pods`
  }

  create(pod: KubeObject): Promise<KubeObject> {
    return this.api.post(this.path, pod)
  }

  /** The pod, or undefined when there is none of that name. */
  async find(name: string): Promise<KubeObject | undefined> {
    const { items } = await this.api.get(`${this.path}?fieldSelector=metadata.name%3D${name}`)
    return items[0]
  }

  /** Reads the pod until it is as wanted. */
  async until(what: string, name: string, check: (pod: KubeObject) => boolean): Promise<KubeObject> {
    let last: KubeObject
    try {
      return await waitUntil(`pod ${name}: ${what}`, async () => {
        last = await this.find(name)
        return last !== undefined && check(last) ? last : null
      })
    } catch (error) {
      throw new Error(`${(error as Error).message}; its last status: ${JSON.stringify(last?.status)}`)
    }
  }

  ready(name: string): Promise<KubeObject> {
    return this.until('is Ready', name, isReady)
  }

  delete(name: string, options: KubeObject = {}): Promise<KubeObject> {
    return this.api.delete(`${this.path}/${name}`, options)
  }

  /** Removes all of them, at once, and waits until they are gone. */
  async clear(): Promise<void> {
    await this.api.delete(this.path, { gracePeriodSeconds: 0 })
    await waitUntil(
      'all pods are gone',
      async () => (await this.api.get(`${this.path}?limit=1`)).items.length === 0,
    )
  }

  gone(name: string): Promise<true> {
    return waitUntil(`pod ${name} is gone`, async () => (await this.find(name)) === undefined)
  }
}

/** Whether the pod's condition Ready is true. */
export function isReady(pod: KubeObject): boolean {
  return Boolean(pod.status.conditions?.some((c: KubeObject) => c.type === 'Ready' && c.status === 'True'))
}
