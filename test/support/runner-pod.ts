import { type BrokerKeys, createSigner } from '../../dist/token/token.js'
import { createRunnerClient, jobDigest } from '../../src/runner/client.js'
import { IMAGE, IMAGE_FIREPOOL } from './container-image.js'
import type { KubeObject } from './kube-api.js'
import { podObject } from './kube-pods.js'

/** Firepool's real runner as a pod, and one caller's way to it, without a broker. */

/** Leaves a process in a session of its own; it has left the job's group when the job ends. */
export const DAEMON =
  "setsid sh -c 'echo kept > kept; exec sleep 3600' > /dev/null 2>&1 & until [ -s kept ]; do sleep 0.01; done"

const PORT = 7070
const VOLUME = '/var/lib/firepool/pod'

/** What the restricted Pod Security Standard asks for. */
export const RESTRICTED = {
  allowPrivilegeEscalation: false,
  capabilities: { drop: ['ALL'] },
  runAsNonRoot: true,
  runAsUser: 1000,
  seccompProfile: { type: 'RuntimeDefault' },
}

/** @param player who plays the kubelet of its node */
export function runnerPod(name: string, player: string, keys: BrokerKeys): KubeObject {
  const env = {
    FIREPOOL_POD: name,
    FIREPOOL_POD_DIR: `${VOLUME}/${name}`,
    FIREPOOL_LISTEN: `$(POD_IP):${PORT}`,
    FIREPOOL_BROKER_KEY: keys.publicKeyBase64,
    FIREPOOL_LIFETIME_MS: '600000',
    FIREPOOL_BROKER_GONE_MS: '600000',
    FIREPOOL_START_DELAY_MS: '0',
    FIREPOOL_PROFILE: '{}',
  }
  return podObject(name, player, {
    spec: {
      automountServiceAccountToken: false,
      securityContext: { fsGroup: 1000 },
      volumes: [{ name: 'pod', emptyDir: {} }],
    },
    container: {
      image: IMAGE.node,
      imagePullPolicy: 'Never',
      command: ['node', `${IMAGE_FIREPOOL}/dist/runner/main.js`],
      env: [
        { name: 'POD_IP', valueFrom: { fieldRef: { fieldPath: 'status.podIP' } } },
        ...Object.entries(env).map(([key, value]) => ({ name: key, value })),
      ],
      volumeMounts: [{ name: 'pod', mountPath: VOLUME }],
      resources: { requests: { cpu: '250m', memory: '256Mi', 'ephemeral-storage': '1Gi' } },
      readinessProbe: { tcpSocket: { port: PORT }, periodSeconds: 1 },
      securityContext: RESTRICTED,
    },
  })
}

/** One lease of the runner in a pod that is Ready. */
export function leaseOf(pod: KubeObject, keys: BrokerKeys, epoch = 1) {
  const { name } = pod.metadata
  const address = `http://${pod.status.podIP}:${PORT}`
  const sign = createSigner(keys)
  const broker = createRunnerClient(address, sign(name, 'broker', 0, ''))
  const lease = createRunnerClient(address, sign(name, 'lease', epoch, `lease-${epoch}`))
  let jobs = 0
  return {
    broker,
    async bind() {
      const { incarnation } = await broker.status()
      await broker.bind({ v: 1, epoch, leaseId: `lease-${epoch}`, ownerHash: 'owner', incarnation })
    },
    /** Runs a shell command as a job and takes its outcome. */
    async run(command: string) {
      const spec = { command }
      const job = { v: 1, jobId: `job/${++jobs}`, digest: jobDigest(spec) } as const
      const outcome = await lease.jobs({ ...job, epoch, spec })
      await lease.ack(job)
      return outcome
    },
    async drain() {
      const { useSeq } = await broker.status()
      return broker.drain({ v: 1, drainId: 'drain', epoch, useSeq })
    },
  }
}
