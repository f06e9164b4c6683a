import type { GpuShare, KubernetesProfile, PodOrder } from '../../contract/index.js'
import { KubeError } from '../kube-error.js'
import { LABEL } from '../names.js'
import type { KubeObject, PodBody } from '../objects.js'
import { objectPath, type Requests } from '../requests.js'
import { clusterFacts } from './cluster-facts.js'
import { notInstalled, subjectsOf } from './installed.js'
import { claimsOf } from './pod-gpus.js'
import type { ClaimBody } from './share.js'

/** A cluster that had what a profile needs is believed this long to have it still. */
const FOUND_MS = 300_000
/** Somebody may be installing it. */
const MISSING_MS = 15_000
/** A claim is looked at again after this: somebody may have deleted it. */
const CLAIM_MS = 10_000

const API = '/apis/resource.k8s.io/v1'
const RESOURCE = { ResourceClaim: 'resourceclaims', ResourceClaimTemplate: 'resourceclaimtemplates' } as const

type Lacking = { reason: string; message: string } | null
type Order = PodOrder & { profile: KubernetesProfile }

/** What pods with GPUs need beside themselves: a provider that is installed, and claims that are there. */
export class Shares {
  readonly #requests: Requests
  readonly #broker: string
  readonly #looked = new Answers()
  readonly #claims = new Answers()

  constructor(requests: Requests, broker: string) {
    this.#requests = requests
    this.#broker = broker
  }

  /**
   * Makes what the order's pod names and is not there, under the pod's own owner.
   * @returns what the cluster lacks, or null @throws KubeError
   */
  async prepare(order: Order, body: PodBody): Promise<Lacking> {
    const { gpu } = order.profile
    if (!gpu) return null
    const lacking = await this.#lookedFor(gpu)
    if (lacking) return lacking
    const { namespace = '', ownerReferences = [] } = body.metadata
    const made = await Promise.all(
      claimsOf(order, this.#broker).map((claim) => this.#claim(claim, namespace, ownerReferences)),
    )
    return made.find((one) => one !== null) ?? null
  }

  #lookedFor(gpu: GpuShare): Promise<Lacking> {
    const key = JSON.stringify([gpu.provider, gpu.resource, gpu.queue, gpu.deviceClass, gpu.agent])
    const look = async () => notInstalled(gpu, await clusterFacts(this.#requests, subjectsOf(gpu)))
    return this.#looked.get(key, look, (lacking) => (lacking ? MISSING_MS : FOUND_MS))
  }

  #claim(claim: ClaimBody, namespace: string, ownerReferences: object[]): Promise<Lacking> {
    const key = JSON.stringify([namespace, claim.metadata.name, ownerReferences])
    return this.#claims.get(
      key,
      () => this.#make(claim, namespace, ownerReferences),
      () => CLAIM_MS,
    )
  }

  async #make(claim: ClaimBody, namespace: string, ownerReferences: object[]): Promise<Lacking> {
    const { name } = claim.metadata
    const resource = RESOURCE[claim.kind]
    const asked = { resource, namespace, name } as const
    try {
      await this.#requests.text({
        ...asked,
        verb: 'create',
        path: objectPath(API, namespace, resource),
        query: { fieldValidation: 'Strict', fieldManager: 'firepool' },
        body: { ...claim, metadata: { ...claim.metadata, namespace, ownerReferences } },
      })
      return null
    } catch (error) {
      if (!(error instanceof KubeError)) throw error
      // A selector that is no CEL, above all.
      if (error.status === 422 || error.status === 400)
        return { reason: 'InvalidClaim', message: `${error.said}; correct profile.gpu` }
      if (!(error.status === 409 && error.reason === 'AlreadyExists')) throw error
    }
    const path = objectPath(API, namespace, resource, name)
    const { metadata } = await this.#requests.json<KubeObject>({ ...asked, verb: 'get', path })
    const isOurs = [LABEL.broker, LABEL.pool].every(
      (label) => metadata.labels?.[label] === claim.metadata.labels[label],
    )
    if (!isOurs) {
      const message = `a ${claim.kind} ${name} that is not of this pool is in namespace ${namespace}; delete it, or use another namespace`
      return { reason: 'NameTaken', message }
    }
    const [owner] = ownerReferences as { uid: string }[]
    // Of an anchor that is gone: the cluster is about to delete it, and the name is free then.
    if (!metadata.ownerReferences?.some(({ uid }) => uid === owner?.uid))
      throw new Error(`${claim.kind} ${name} is being deleted with the earlier life of its pool`)
    return null
  }
}

/** Answers by key, from the moment that they are asked for: a hundred pods at once ask once. One that failed is forgotten. */
class Answers {
  readonly #known = new Map<string, { until: number; answer: Promise<Lacking> }>()

  async get(
    key: string,
    ask: () => Promise<Lacking>,
    trustedMs: (answer: Lacking) => number,
  ): Promise<Lacking> {
    const now = performance.now()
    for (const [other, { until }] of this.#known) if (until <= now) this.#known.delete(other)
    const known = this.#known.get(key)
    if (known) return known.answer
    const entry = { until: Number.POSITIVE_INFINITY, answer: ask() }
    this.#known.set(key, entry)
    try {
      const answer = await entry.answer
      entry.until = performance.now() + trustedMs(answer)
      return answer
    } catch (error) {
      this.#known.delete(key)
      throw error
    }
  }
}
