import {
  type KubernetesProfile,
  type PodOrder,
  poolOfShard,
  RUNNER_CONTAINER,
  SEAT_DRIVER,
  SEAT_VOLUME,
} from '../../contract/index.js'
import { ANNOTATION } from '../names.js'
import type { PodBody } from '../objects.js'

/** The node agent's volume: its pod's own socket in a folder, which is how the runner takes a seat for each job (node-agent/README.md). */

const FOLDER = '/run/firepool-seat'
const SOCKET = `${FOLDER}/agent.sock`

type Fields = Record<string, unknown>

/** The pod of an order with the socket in its runner's container alone, when its profile has the agent; else the pod as it is. Pure. */
export function withSeats(body: PodBody, order: PodOrder & { profile: KubernetesProfile }): PodBody {
  const { gpu } = order.profile
  // An order of an earlier release does not say it at all.
  if (!gpu?.agent) return body
  const { spec } = body
  const env = Object.entries({
    FIREPOOL_SEAT_SOCKET: SOCKET,
    FIREPOOL_SEAT_GPUS: String(gpu.count),
    FIREPOOL_SEAT_IDLE: gpu.idle,
    ...(order.seatSet === undefined ? {} : { FIREPOOL_SEAT_SET: String(order.seatSet.index) }),
  }).map(([name, value]) => ({ name, value }))
  const containers = (spec.containers as Fields[]).map((container) =>
    container.name !== RUNNER_CONTAINER
      ? container
      : {
          ...container,
          env: [...(container.env as Fields[]), ...env],
          volumeMounts: [
            ...(container.volumeMounts as Fields[]),
            { name: SEAT_VOLUME, mountPath: FOLDER, readOnly: true },
          ],
        },
  )
  const volumeAttributes = { tenant: poolOfShard(order.pool) }
  const volume = { name: SEAT_VOLUME, csi: { driver: SEAT_DRIVER, readOnly: true, volumeAttributes } }
  // Of thousands of pods that are watched nobody keeps the volumes.
  const annotations = { ...body.metadata.annotations, [ANNOTATION.seatVolume]: SEAT_VOLUME }
  const metadata = { ...body.metadata, annotations }
  return {
    ...body,
    metadata,
    spec: { ...spec, containers, volumes: [...(spec.volumes as Fields[]), volume] },
  }
}
