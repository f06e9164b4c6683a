import { type GpuShare, SEAT_DRIVER } from '../../contract/index.js'
import { SHARE_PROVIDERS } from './providers.js'
import { type ClusterFacts, type Looked, looked, type Subject } from './share.js'

const SAID: Readonly<Record<Looked['found'], string>> = {
  yes: 'there',
  no: 'not there',
  unknown: 'not known, this worker may not look',
}

/** What somebody does who has not found the node agent, in the cluster or on a node. */
export const INSTALL_AGENT =
  'install the node agent on the GPU nodes (kubectl apply -k deploy/kubernetes/node-agent)'

/** What of the cluster `notInstalled` has to be told. */
export function subjectsOf({ provider, agent }: GpuShare): Subject[] {
  return [...SHARE_PROVIDERS[provider].looksAt, ...(agent ? (['csiDrivers'] as const) : [])]
}

/**
 * Why pods of a profile cannot have their GPUs in this cluster: what was looked for, and what was not found. Null when nothing is known to be missing:
 * what a worker may not look at is no reason to refuse.
 */
export function notInstalled(gpu: GpuShare, facts: ClusterFacts): { reason: string; message: string } | null {
  const { lookedFor, install } = SHARE_PROVIDERS[gpu.provider]
  const ofProvider = lookedFor(gpu, facts)
  // An order of an earlier release does not say it at all.
  const ofAgent = gpu.agent
    ? [looked(`the CSIDriver ${SEAT_DRIVER}`, facts.csiDrivers?.includes(SEAT_DRIVER))]
    : []
  const isMissing = (parts: Looked[]) => parts.some(({ found }) => found === 'no')
  const installs = [
    ...(isMissing(ofProvider) ? [install] : []),
    ...(isMissing(ofAgent) ? [INSTALL_AGENT] : []),
  ]
  if (installs.length === 0) return null
  const all = [...ofProvider, ...ofAgent]
  const list = all.map(({ what, found }) => `${what} (${SAID[found]})`).join(', ')
  return {
    reason: 'GpuProviderMissing',
    message: `the cluster does not have what provider ${gpu.provider} of profile.gpu needs; looked for ${list}; ${installs.join(', ')}, or change profile.gpu`,
  }
}
