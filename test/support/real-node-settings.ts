import { join } from 'node:path'
import { IMAGE } from './container-image.js'
import { NODE_LEASE_SECONDS } from './control-plane-settings.js'
import type { RealNodeParts } from './real-node-parts.js'

/** How containerd and a kubelet are set up on a real node of a test cluster. */

export interface NodePlace {
  /** all that the node writes is below it */
  folder: string
  /** the node's network: first three bytes of addresses, such as 10.200.7 */
  network: string
  /** name of its bridge */
  bridge: string
  /** name of its control group, below the root of each hierarchy */
  cgroup: string
}

export const nodeIp = ({ network }: NodePlace) => `${network}.1`
export const containerdSocket = ({ folder }: NodePlace) => join(folder, 'containerd.sock')
/** The usual one: nobody else has the node's address. */
export const KUBELET_PORT = 10_250

/**
 * Kernel settings that a kubelet and its network plugins change. They are the whole machine's: the node gets files of its own in
 * their place.
 */
const KERNEL_SETTINGS = [
  'vm/overcommit_memory',
  'vm/panic_on_oom',
  'kernel/panic',
  'kernel/panic_on_oops',
  'kernel/keys/root_maxkeys',
  'kernel/keys/root_maxbytes',
  'net/ipv4/ip_forward',
]

/**
 * The script of the node's first process, in namespaces of its own: what the node mounts and writes outside of its folder is seen by
 * nobody else, and goes with it. It says that it is done by a file `ready`.
 */
export function firstProcess({ folder }: NodePlace, pause: string): string {
  return [
    'set -e',
    // Where kubelet, containerd and network plugins keep what no setting puts elsewhere.
    ...['/run', '/var/lib', '/var/log'].map((path) => `mount -t tmpfs tmpfs ${path}`),
    `mkdir -p /var/lib/kubelet ${folder}/kernel`,
    `for name in ${KERNEL_SETTINGS.join(' ')}; do`,
    `  copy="${folder}/kernel/$(echo "$name" | tr / .)"`,
    '  cat "/proc/sys/$name" > "$copy"',
    '  mount --bind "$copy" "/proc/sys/$name"',
    'done',
    // A node that starts again has another one, and its kubelet looks.
    `cat /proc/sys/kernel/random/uuid > ${folder}/kernel/boot_id`,
    `mount --bind ${folder}/kernel/boot_id /proc/sys/kernel/random/boot_id`,
    `touch ${folder}/ready`,
    `exec ${pause}`,
  ].join('\n')
}

/** Where a node keeps the file by which its containers of a class begin, as an OCI runtime reads it. */
export const runtimeFile = ({ folder }: NodePlace, name: string) => join(folder, `runtime-${name}.json`)

/** @param runtimes names of more runtimes: runc, with a file of their own */
export function containerdConfig(
  place: NodePlace,
  parts: RealNodeParts,
  runtimes: readonly string[] = [],
): string {
  const { folder } = place
  const runc = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
  const others = runtimes.map(
    (name) => `
    ${runc}.${name}]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "${runtimeFile(place, name)}"
      ${runc}.${name}.options]
        BinaryName = "${parts.runc}"
        SystemdCgroup = false`,
  )
  const off = [
    ...['snapshotter.v1.btrfs', 'snapshotter.v1.zfs', 'snapshotter.v1.aufs', 'snapshotter.v1.devmapper'],
    ...['internal.v1.opt', 'tracing.processor.v1.otlp', 'internal.v1.tracing'],
  ].map((name) => `"io.containerd.${name}"`)
  return `
version = 2
root = "${folder}/containerd/root"
state = "/run/containerd"
disabled_plugins = [${off.join(', ')}]
[grpc]
  address = "${containerdSocket(place)}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "${IMAGE.pause}"
  stream_server_address = "127.0.0.1"
  # Where a container may not take CAP_SYS_RESOURCE, runc fails to lower a score.
  restrict_oom_score_adj = true
  disable_tcp_service = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "${parts.runc}"
        SystemdCgroup = false${others.join('')}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "${parts.networkPlugins}"
    conf_dir = "${folder}/network"
`
}

/** Of the network plugins: pods are on one bridge with the machine, and nothing leads further. */
export function networkConfig({ bridge, network, folder }: NodePlace): unknown {
  const ipam = {
    type: 'host-local',
    dataDir: `${folder}/addresses`,
    ranges: [[{ subnet: `${network}.0/24` }]],
  }
  const plugin = { type: 'bridge', bridge, isGateway: true, ipMasq: false, ipam }
  return { cniVersion: '1.0.0', name: 'firepool', plugins: [plugin] }
}

export function kubeletConfig(place: NodePlace): unknown {
  const { folder, cgroup } = place
  return {
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    address: nodeIp(place),
    port: KUBELET_PORT,
    healthzPort: 0,
    readOnlyPort: 0,
    containerRuntimeEndpoint: `unix://${containerdSocket(place)}`,
    cgroupDriver: 'cgroupfs',
    cgroupRoot: `/${cgroup}`,
    // Machines with the older control groups are still about.
    failCgroupV1: false,
    failSwapOn: false,
    podLogsDir: `${folder}/pod-logs`,
    volumePluginDir: `${folder}/volume-plugins`,
    makeIPTablesUtilChains: false,
    // The disk is shared with others, and fuller than a node's should be.
    evictionHard: { 'memory.available': '100Mi', 'nodefs.available': '1%', 'imagefs.available': '1%' },
    imageGCHighThresholdPercent: 100,
    imageMinimumGCAge: '24h',
    serializeImagePulls: false,
    nodeStatusUpdateFrequency: '2s',
    nodeLeaseDurationSeconds: NODE_LEASE_SECONDS,
    tlsCertFile: `${folder}/kubelet.crt`,
    tlsPrivateKeyFile: `${folder}/kubelet.key`,
    authentication: {
      anonymous: { enabled: false },
      webhook: { enabled: true },
      x509: { clientCAFile: `${folder}/ca.crt` },
    },
    authorization: { mode: 'Webhook' },
    resolvConf: '',
  }
}
