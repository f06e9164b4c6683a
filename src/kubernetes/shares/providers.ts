import type { GpuProvider } from '../../contract/index.js'
import { dra } from './dra.js'
import { extendedResource } from './extended-resource.js'
import { hami } from './hami.js'
import { kai } from './kai.js'
import type { GpuShareProvider } from './share.js'

/** Every provider that a profile may name. */
export const SHARE_PROVIDERS: Readonly<Record<GpuProvider, GpuShareProvider>> = {
  'device-plugin': extendedResource('device-plugin'),
  'time-slicing': extendedResource('time-slicing'),
  mps: extendedResource('mps'),
  mig: extendedResource('mig'),
  kai,
  hami,
  dra,
}
