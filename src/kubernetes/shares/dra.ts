import { GPU_CAPABILITIES, type GpuShare } from '../../contract/index.js'
import { anchorName, LABEL, MANAGED_BY, shortHash } from '../names.js'
import { seatOfClaim } from './seat.js'
import { type ClaimBody, type GpuShareProvider, looked, type ShareOrder } from './share.js'

/**
 * Dynamic Resource Allocation, resource.k8s.io/v1. Pods that name one ResourceClaim have the very same GPUs, which is what a seat set is; a pod that shares with
 * nobody has a claim of its own, which Kubernetes makes from the pool's template and deletes with the pod.
 * https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/ and https://github.com/NVIDIA/k8s-dra-driver-gpu.
 */
export const dra: GpuShareProvider = {
  capabilities: GPU_CAPABILITIES.dra,
  podParts: (order) => ({
    resourceClaims: [
      {
        name: CLAIM,
        ...(order.seatSet === undefined
          ? { resourceClaimTemplateName: templateName(order) }
          : { resourceClaimName: setName(order, order.seatSet.index) }),
      },
    ],
    claims: [{ name: CLAIM }],
  }),
  claims: (order) => [
    order.seatSet === undefined ? claimTemplate(order) : sharedClaim(order, order.seatSet.index),
  ],
  // Only the claim that we ask for: a template may have others, of other devices.
  seatOf: (seen) => seatOfClaim(seen, (name) => name === CLAIM),
  looksAt: ['apis', 'deviceClasses'],
  lookedFor: ({ deviceClass }, { apis, deviceClasses }) => [
    looked(`the API ${API}`, apis?.includes(API)),
    looked(`the DeviceClass ${deviceClass}`, deviceClasses?.includes(deviceClass ?? '')),
  ],
  install:
    "install a DRA driver with its DeviceClass, such as NVIDIA's for GPUs, on Kubernetes 1.34 or newer",
}

const API = 'resource.k8s.io/v1'
/** The pod's own name for its claim. */
export const CLAIM = 'firepool-gpus'

/**
 * A claim's spec never changes, so its name says what it asks for. A new template that asks for the same shares the claims of the one before:
 * its pods take their GPUs over, where claims of their own would wait for as many that are free.
 */
function nameOf({ pool, broker }: ShareOrder, what: Record<string, unknown>): string {
  return `${anchorName(pool, broker)}-${shortHash(JSON.stringify(what))}`
}

function templateName(order: ShareOrder): string {
  return nameOf(order, request(order.gpu, order.gpu.count))
}

function setName(order: ShareOrder, index: number): string {
  return `${nameOf(order, request(order.gpu, order.gpu.seatSet))}-set-${index}`
}

function sharedClaim(order: ShareOrder, index: number): ClaimBody {
  return {
    apiVersion: API,
    kind: 'ResourceClaim',
    metadata: { name: setName(order, index), labels: labelsOf(order) },
    spec: request(order.gpu, order.gpu.seatSet),
  }
}

function claimTemplate(order: ShareOrder): ClaimBody {
  return {
    apiVersion: API,
    kind: 'ResourceClaimTemplate',
    metadata: { name: templateName(order), labels: labelsOf(order) },
    spec: { metadata: { labels: labelsOf(order) }, spec: request(order.gpu, order.gpu.count) },
  }
}

function labelsOf({ pool, broker }: ShareOrder): Record<string, string> {
  return {
    [LABEL.managedBy]: MANAGED_BY,
    [LABEL.broker]: broker,
    [LABEL.pool]: pool,
  }
}

/** Nothing says that they be of one node: the scheduler gives a claim devices of the node that the pod is to be on. */
function request({ deviceClass, selector }: GpuShare, count: number): Record<string, unknown> {
  const exactly = {
    deviceClassName: deviceClass,
    allocationMode: 'ExactCount',
    count,
    ...(selector === null ? {} : { selectors: [{ cel: { expression: selector } }] }),
  }
  return { devices: { requests: [{ name: 'gpu', exactly }] } }
}
