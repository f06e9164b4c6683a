import { expect, test } from 'vitest'
import { deviceEnvironment, visibleGpus } from './devices.js'

const GPU = 'GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448'

test("jobs know of the container's devices and limits, and of nothing else of it", () => {
  const devices = {
    NVIDIA_VISIBLE_DEVICES: GPU,
    CUDA_MPS_PIPE_DIRECTORY: '/mps/pipe',
    CUDA_DEVICE_MEMORY_LIMIT_0: '8192m',
    GPU_CORE_UTILIZATION_POLICY: 'default',
    LD_LIBRARY_PATH: '/usr/local/nvidia/lib64',
  }
  const others = { FIREPOOL_BROKER_KEY: 'k', KUBERNETES_SERVICE_HOST: '10.96.0.1', NVIDIA_API_KEY: 's' }
  expect(deviceEnvironment({ ...devices, ...others })).toEqual(devices)
})

test('the GPUs are those that the plugin handed over; a machine without a cluster has none of its own', async () => {
  expect(await visibleGpus({ NVIDIA_VISIBLE_DEVICES: GPU })).toEqual([GPU])
  expect(await visibleGpus({ NVIDIA_VISIBLE_DEVICES: 'all' })).toEqual([])
  expect(await visibleGpus({})).toEqual([])
})
