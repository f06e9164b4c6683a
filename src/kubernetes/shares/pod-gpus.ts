import { type KubernetesProfile, type PodOrder, RUNNER_CONTAINER } from '../../contract/index.js'
import type { PodBody } from '../objects.js'
import { SHARE_PROVIDERS } from './providers.js'
import type { ClaimBody, PodParts } from './share.js'

type Order = PodOrder & { profile: KubernetesProfile }
type Fields = Record<string, unknown>

/** The pod of an order with what its profile's provider of GPUs needs in it; without one, the pod as it is. Pure. */
export function withGpus(body: PodBody, order: Order, broker: string): PodBody {
  const { gpu } = order.profile
  // An order of an earlier release does not say it at all.
  if (!gpu) return body
  const { podParts } = SHARE_PROVIDERS[gpu.provider]
  return merged(body, podParts({ ...order, gpu, broker }))
}

/** The objects that the pod of an order names, to be created before it. Pure. */
export function claimsOf(order: Order, broker: string): ClaimBody[] {
  const { gpu } = order.profile
  return !gpu ? [] : SHARE_PROVIDERS[gpu.provider].claims({ ...order, gpu, broker })
}

function merged(body: PodBody, parts: PodParts): PodBody {
  const { labels = {}, annotations = {}, schedulerName, resourceClaims, limits = {}, claims = [] } = parts
  const { spec, metadata } = body
  const containers = (spec.containers as Fields[]).map((container) =>
    container.name === RUNNER_CONTAINER
      ? { ...container, resources: withDevices(container.resources) }
      : container,
  )
  function withDevices(resources: unknown): Fields {
    const own = (resources ?? {}) as { limits?: Fields; claims?: Fields[] }
    const all = [...(own.claims ?? []), ...claims]
    return { ...own, limits: { ...own.limits, ...limits }, ...(all.length === 0 ? {} : { claims: all }) }
  }
  return {
    ...body,
    metadata: {
      ...metadata,
      labels: { ...metadata.labels, ...labels },
      annotations: { ...metadata.annotations, ...annotations },
    },
    spec: {
      ...spec,
      containers,
      ...(schedulerName === undefined ? {} : { schedulerName }),
      ...(resourceClaims === undefined
        ? {}
        : { resourceClaims: [...((spec.resourceClaims ?? []) as Fields[]), ...resourceClaims] }),
    },
  }
}
