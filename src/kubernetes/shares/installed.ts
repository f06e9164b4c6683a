import type { GpuShare } from '../../contract/index.js'
import { SHARE_PROVIDERS } from './providers.js'
import type { ClusterFacts, Looked } from './share.js'

const SAID: Readonly<Record<Looked['found'], string>> = {
  yes: 'there',
  no: 'not there',
  unknown: 'not known, this worker may not look',
}

/**
 * Why pods of a profile cannot have their GPUs in this cluster: what was looked for, and what was not found. Null when nothing is known to be missing:
 * what a worker may not look at is no reason to refuse.
 */
export function notInstalled(gpu: GpuShare, facts: ClusterFacts): { reason: string; message: string } | null {
  const { lookedFor, install } = SHARE_PROVIDERS[gpu.provider]
  const all = lookedFor(gpu, facts)
  if (!all.some(({ found }) => found === 'no')) return null
  const list = all.map(({ what, found }) => `${what} (${SAID[found]})`).join(', ')
  return {
    reason: 'GpuProviderMissing',
    message: `the cluster does not have what provider ${gpu.provider} of profile.gpu needs; looked for ${list}; ${install}, or change profile.gpu`,
  }
}
