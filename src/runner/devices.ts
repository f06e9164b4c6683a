import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { gpuUuids } from '../contract/index.js'

/** GPUs of the container that the runner is in: what jobs are to know of them, and what the runner says of them. */

/** Without persistence mode the driver starts for the question. */
const LIST_MS = 10_000
const CONTROL_DEVICE = '/dev/nvidiactl'

/** Not all that begins with NVIDIA: people call keys so. */
const DEVICE_VARIABLE =
  /^(CUDA_\w+|NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|GPU_CORE_UTILIZATION_POLICY|LD_LIBRARY_PATH)$/

/**
 * What a plugin, a scheduler or a CUDA image has set on the container: which devices, which limits on them (HAMi, MPS), which libraries. A library
 * that holds a job to its share reads it in the job's own environment.
 */
export function deviceEnvironment(env: NodeJS.ProcessEnv): Record<string, string> {
  const ours = Object.entries(env).filter(
    ([name, value]) => value !== undefined && DEVICE_VARIABLE.test(name),
  )
  return Object.fromEntries(ours) as Record<string, string>
}

/**
 * UUIDs of the GPUs, or slices, that the container has. From the variable by which NVIDIA's plugin hands them to the container runtime, or
 * from the driver where that variable holds none (indexes, CDI); only in a cluster, because a pod on one machine has all of its GPUs.
 */
export async function visibleGpus(env: NodeJS.ProcessEnv): Promise<string[]> {
  const named = gpuUuids(env.NVIDIA_VISIBLE_DEVICES ?? '')
  if (named.length > 0 || env.KUBERNETES_SERVICE_HOST === undefined || !existsSync(CONTROL_DEVICE))
    return named
  return gpuUuids(await listed())
}

/** `GPU 0: NAME (UUID: GPU-...)`, and a line for each slice; empty when there is no such program. */
function listed(): Promise<string> {
  return new Promise((resolve) => {
    const options = { timeout: LIST_MS, killSignal: 'SIGKILL' } as const
    execFile('nvidia-smi', ['-L'], options, (error, stdout) => resolve(error ? '' : stdout))
  })
}
