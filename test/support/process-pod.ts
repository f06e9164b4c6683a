import { mkdirSync, readFileSync } from 'node:fs'
import { constants } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { killMarked } from '../../src/runner/process-tree.js'
import { GPU_RESOURCE } from './control-plane-objects.js'
import type { Keeper, Part } from './keeper.js'
import { type KubeApi, KubeError, type KubeObject } from './kube-api.js'
import {
  ContainerConfigError,
  containerEnvironment,
  expand,
  makeVolumes,
  outsideOf,
  type Paths,
} from './pod-environment.js'
import { isAnswered } from './pod-probe.js'

/** Of the kubelet: the first restart is at once, then it waits, twice as long each time. */
const BACK_OFF_MS = 10_000
const BACK_OFF_MOST_MS = 300_000
const START_ERROR_CODE = 128
const RETRY_MS = 300
/** Tests look more often than a kubelet's 10 s. */
const PROBE_EVERY_MS = 100
const PROBE_FAILURES = 3
const DEFAULT_GRACE_SECONDS = 30
/** Of the kubelet, for the end of a log; it takes twice as much from the file. */
const TERMINATION_CHARS = 2_048

/** What a pod needs of the kubelet that runs it. */
export interface PodHost {
  api: KubeApi
  keeper: Keeper
  /** where the image's paths are on this machine */
  imagePaths: Paths
  /** a new one each time */
  podAddress(): string
  /** GPUs by name, or undefined when there are not as many */
  takeGpus(count: number): string[] | undefined
  returnGpus(names: readonly string[]): void
}

interface Container {
  name: string
  image: string
  spec: KubeObject
  part?: Part
  /** stands for the id of the container: another one is another start */
  id?: string
  /** where the container may write why it ends */
  terminationLog?: string
  /** value of FIREPOOL_POD, if it is a runner: what it starts carries it */
  mark?: string
  /** when what is known of the end of its first process is in its state */
  settled?: Promise<void>
  ready: boolean
  restarts: number
  state: KubeObject
  lastState?: KubeObject
  logs: string[]
}

/** One pod as local processes on an address of their own, from its first status to its deletion. */
export class ProcessPod {
  /** 127.x.y.z */
  readonly ip: string
  private readonly containers: Container[]
  private readonly folder: string
  private readonly startTime = now()
  private readonly timers: NodeJS.Timeout[] = []
  private gpus: string[] = []
  /** of the pod as a whole */
  private failure: { reason: string; message: string } | undefined
  private isEnding = false
  private isDeleting = false
  private isKilled = false
  private ended: Promise<void> | undefined
  private killer: NodeJS.Timeout | undefined
  private isUnreported = false
  private reporting: Promise<void> | undefined
  /** the node has fallen silent: nothing is told to the API server, and nothing heard from it */
  isSilent = false

  constructor(
    private pod: KubeObject,
    private readonly host: PodHost,
  ) {
    this.ip = host.podAddress()
    this.folder = join(host.keeper.folder, pod.metadata.uid)
    this.containers = pod.spec.containers.map((spec: KubeObject) => ({
      name: spec.name,
      image: spec.image,
      spec,
      ready: false,
      restarts: 0,
      state: { waiting: { reason: 'ContainerCreating' } },
      logs: [],
    }))
  }

  get name(): string {
    return this.pod.metadata.name
  }

  get namespace(): string {
    return this.pod.metadata.namespace
  }

  /** Process ids of what its containers run now, the first process of each. */
  pids(): number[] {
    return this.containers.flatMap(({ part }) =>
      part && part.pid > 0 && !part.hasExited() ? [part.pid] : [],
    )
  }

  /** What a container has printed, in this and earlier starts. */
  log(container = this.containers[0]!.name): string {
    const { logs = [] } = this.containers.find(({ name }) => name === container) ?? {}
    return logs.map((file) => readFileSync(file, 'utf8')).join('')
  }

  /** Runs the containers to their end; what goes wrong is in the pod's status. */
  async run(): Promise<void> {
    this.report()
    if (this.pod.spec.initContainers?.length)
      return this.reject('UnexpectedAdmissionError', 'no init containers here')
    const wanted = Number(this.pod.spec.containers[0].resources?.limits?.[GPU_RESOURCE] ?? 0)
    const gpus = this.host.takeGpus(wanted)
    if (gpus === undefined)
      return this.reject('UnexpectedAdmissionError', `fewer than ${wanted} GPUs are free`)
    this.gpus = gpus
    const deadlineSeconds = this.pod.spec.activeDeadlineSeconds
    if (deadlineSeconds !== undefined) {
      this.timers.push(setTimeout(() => this.endAtDeadline(), deadlineSeconds * 1_000))
    }
    try {
      const volumes = await makeVolumes(this.host.api, this.pod, this.folder)
      await Promise.all(this.containers.map((c) => this.startContainer(c, volumes.get(c.name) ?? [])))
    } catch (error) {
      for (const container of this.containers) this.refuse(container, error as Error)
    }
  }

  /** The pod as the API server has it now: a deletion, or a shorter grace. */
  update(pod: KubeObject): void {
    this.pod = pod
    if (pod.metadata.deletionTimestamp === undefined) return
    const graceMs = (pod.metadata.deletionGracePeriodSeconds ?? DEFAULT_GRACE_SECONDS) * 1_000
    if (this.isDeleting) {
      this.killAfter(graceMs)
      return
    }
    this.isDeleting = true
    this.ended = this.end(graceMs).then(() => this.remove())
  }

  /** Kills what runs, without a word to the API server. */
  async kill(): Promise<void> {
    this.isKilled = true
    this.isEnding = true
    for (const timer of this.timers) clearTimeout(timer)
    for (const { part } of this.containers) if (part && !part.hasExited()) part.signal('SIGKILL')
    await Promise.all(this.containers.map(({ settled }) => settled))
    await this.ended
  }

  /** Says again how the pod is, as a kubelet does that has found its API server again. */
  report(): void {
    this.isUnreported = true
    this.reporting ??= this.write().finally(() => {
      this.reporting = undefined
    })
  }

  /** Resolves when the container has ended for good. */
  private async startContainer(container: Container, mounts: Paths): Promise<void> {
    const { spec } = container
    const terminationLog = join(this.folder, `${container.name}-termination-log-${container.restarts}`)
    const terminationPath = spec.terminationMessagePath ?? '/dev/termination-log'
    const paths = [...mounts, ...this.host.imagePaths, [terminationPath, terminationLog] as const]
    let env: Record<string, string>
    try {
      env = await containerEnvironment(this.host.api, this.pod, spec, this.ip)
    } catch (error) {
      return this.refuse(container, error as Error)
    }
    if (this.isEnding) return
    const [command, ...args] = [...(spec.command ?? []), ...(spec.args ?? [])].map((text) =>
      outsideOf(expand(text, env), paths),
    )
    if (command === undefined) return this.refuse(container, new ContainerConfigError('no command specified'))
    const name = `${this.namespace}-${this.name}-${container.name}-${this.pod.metadata.uid}-${container.restarts}`
    const inside = Object.entries(env).map(([key, value]) => [key, outsideOf(value, paths)])
    const part = this.host.keeper.start(command, args, {
      name,
      cwd: this.workFolder(spec, paths),
      env: {
        PATH: [dirname(process.execPath), '/usr/local/bin:/usr/bin:/bin'].join(':'),
        HOSTNAME: this.name,
        ...(this.gpus.length > 0 ? { NVIDIA_VISIBLE_DEVICES: this.gpus.join(',') } : {}),
        ...Object.fromEntries(inside),
      },
    })
    container.part = part
    container.id = `process://${this.pod.metadata.uid}-${part.pid}`
    container.terminationLog = terminationLog
    if (env.FIREPOOL_POD !== undefined) container.mark = env.FIREPOOL_POD
    container.logs.push(join(this.host.keeper.folder, `${name}.log`))
    container.state = { running: { startedAt: now() } }
    container.ready = spec.readinessProbe === undefined
    this.report()
    if (spec.readinessProbe) void this.probe(container, part)
    container.settled = part.exited.then((how) => this.settle(container, how))
    await container.settled
    await this.restart(container, mounts)
  }

  private workFolder(spec: KubeObject, paths: Paths): string {
    const folder = spec.workingDir ? outsideOf(spec.workingDir, paths) : this.folder
    mkdirSync(folder, { recursive: true })
    return folder
  }

  /** The readiness probe, if it is one by HTTP or TCP, as long as the container runs. */
  private async probe(container: Container, part: Part): Promise<void> {
    const { readinessProbe } = container.spec
    const { periodSeconds, failureThreshold = PROBE_FAILURES } = readinessProbe
    let failures = 0
    while (!part.hasExited() && !this.isEnding) {
      const isGood = await isAnswered(readinessProbe, container.spec, this.ip)
      failures = isGood ? 0 : failures + 1
      const ready = isGood || (container.ready && failures < failureThreshold)
      if (ready !== container.ready && !part.hasExited()) {
        container.ready = ready
        this.report()
      }
      // A kubelet looks again after a period; for a start that would be seconds of a test.
      await sleep(container.ready && periodSeconds ? periodSeconds * 1_000 : PROBE_EVERY_MS, undefined, {
        ref: false,
      })
    }
  }

  private async settle(container: Container, how: string): Promise<void> {
    // What is left of a container ends with its first process: its group, and what a runner has started.
    container.part?.signal('SIGKILL')
    if (container.mark !== undefined) await killMarked({ env: { FIREPOOL_POD: container.mark } })
    const exit = exitOf(how)
    const message = exit.message ?? this.lastWords(container, exit.exitCode)
    const { startedAt } = container.state.running
    const ended = { startedAt, finishedAt: now(), ...(container.id ? { containerID: container.id } : {}) }
    container.ready = false
    container.state = { terminated: { ...exit, ...ended, ...(message ? { message } : {}) } }
  }

  /** What a container has written to say why it ended, or the end of its log if it wants that. */
  private lastWords({ spec, terminationLog, logs }: Container, exitCode: number): string {
    const written = terminationLog === undefined ? '' : readIfThere(terminationLog)
    const wantsLog = spec.terminationMessagePolicy === 'FallbackToLogsOnError' && exitCode !== 0
    const text = written === '' && wantsLog ? readIfThere(logs.at(-1) ?? '') : written
    return text.slice(-TERMINATION_CHARS)
  }

  private async restart(container: Container, mounts: Paths): Promise<void> {
    const { terminated } = container.state
    const { restartPolicy } = this.pod.spec
    const again = restartPolicy === 'Always' || (restartPolicy === 'OnFailure' && terminated.exitCode !== 0)
    if (!again || this.isEnding) {
      if (this.isOver()) this.returnGpus()
      this.report()
      return
    }
    container.lastState = { terminated }
    container.restarts++
    if (container.restarts > 1) {
      container.state = { waiting: { reason: 'CrashLoopBackOff' } }
      this.report()
      const waitMs = Math.min(BACK_OFF_MOST_MS, BACK_OFF_MS * 2 ** (container.restarts - 2))
      await sleep(waitMs, undefined, { ref: false })
    }
    if (!this.isEnding) await this.startContainer(container, mounts)
  }

  private refuse(container: Container, error: Error): void {
    const reason = error instanceof ContainerConfigError ? error.reason : 'CreateContainerError'
    container.state = { waiting: { reason, message: error.message } }
    this.report()
  }

  /** The kubelet gives the pod up. */
  private reject(reason: string, message: string): void {
    this.failure = { reason, message }
    this.report()
  }

  private async endAtDeadline(): Promise<void> {
    if (this.isEnding || this.isOver()) return
    this.failure = {
      reason: 'DeadlineExceeded',
      message: 'Pod was active on the node longer than the specified deadline',
    }
    const graceSeconds = this.pod.spec.terminationGracePeriodSeconds ?? DEFAULT_GRACE_SECONDS
    this.ended = this.end(graceSeconds * 1_000)
  }

  /** SIGTERM to the first process of each container, as a container runtime does, and SIGKILL after the grace. */
  private async end(graceMs: number): Promise<void> {
    this.isEnding = true
    for (const timer of this.timers) clearTimeout(timer)
    for (const pid of this.pids()) process.kill(pid, 'SIGTERM')
    this.killAfter(graceMs)
    await Promise.all(this.containers.map(({ settled }) => settled))
    clearTimeout(this.killer)
    this.returnGpus()
    this.report()
    await this.reporting
  }

  private killAfter(graceMs: number): void {
    clearTimeout(this.killer)
    if (this.pids().length === 0) return
    this.killer = setTimeout(() => {
      for (const { part } of this.containers) if (part && !part.hasExited()) part.signal('SIGKILL')
    }, graceMs)
  }

  private returnGpus(): void {
    this.host.returnGpus(this.gpus)
    this.gpus = []
  }

  /** The last word of a kubelet about a pod: nothing of it runs any more, and it may be forgotten. */
  private async remove(): Promise<void> {
    const { name, namespace, uid } = this.pod.metadata
    const options = { gracePeriodSeconds: 0, preconditions: { uid } }
    await this.insist(() => this.host.api.delete(`/api/v1/namespaces/${namespace}/pods/${name}`, options))
  }

  private async write(): Promise<void> {
    const { name, namespace, uid } = this.pod.metadata
    while (this.isUnreported) {
      this.isUnreported = false
      const body = { metadata: { uid }, status: this.status() }
      await this.insist(() =>
        this.host.api.patch(`/api/v1/namespaces/${namespace}/pods/${name}/status`, body, 'strategic'),
      )
    }
  }

  /** Again and again while the API server is away, or the node silent; a pod that is gone, or another one by now, is not our business. */
  private async insist(call: () => Promise<unknown>): Promise<void> {
    while (!this.isKilled) {
      try {
        if (!this.isSilent) {
          await call()
          return
        }
      } catch (error) {
        if (error instanceof KubeError && [404, 409, 422].includes(error.code)) return
      }
      await sleep(RETRY_MS)
    }
  }

  private isOver(): boolean {
    return this.containers.every(({ state }) => state.terminated)
  }

  private phase(): string {
    if (this.failure) return 'Failed'
    if (!this.isOver())
      return this.containers.some(
        ({ state }) => !state.waiting || state.waiting.reason === 'CrashLoopBackOff',
      )
        ? 'Running'
        : 'Pending'
    return this.containers.every(({ state }) => state.terminated.exitCode === 0) ? 'Succeeded' : 'Failed'
  }

  private status(): KubeObject {
    const phase = this.phase()
    const ready = this.containers.every((container) => container.ready)
    const why = { Succeeded: 'PodCompleted', Failed: 'PodFailed' }[phase] ?? 'ContainersNotReady'
    const condition = (type: string, isTrue: boolean) => ({
      type,
      status: isTrue ? 'True' : 'False',
      reason: isTrue ? null : why,
      lastTransitionTime: now(),
    })
    return {
      phase,
      ...this.failure,
      startTime: this.startTime,
      hostIP: '127.0.0.1',
      hostIPs: [{ ip: '127.0.0.1' }],
      podIP: this.ip,
      podIPs: [{ ip: this.ip }],
      conditions: [
        condition('Initialized', true),
        condition('PodReadyToStartContainers', true),
        condition('ContainersReady', ready),
        condition('Ready', ready),
      ],
      containerStatuses: this.containers.map(
        ({ name, image, restarts, lastState, state, ready: isReady }) => ({
          name,
          image,
          imageID: '',
          ready: isReady,
          started: state.running !== undefined,
          restartCount: restarts,
          // A merge keeps what is not mentioned, and a container has one state.
          state: { waiting: null, running: null, terminated: null, ...state },
          ...(lastState ? { lastState } : {}),
        }),
      ),
    }
  }
}

const now = () => new Date().toISOString()

function readIfThere(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

/** How a container's first process ended, as a kubelet says it. */
function exitOf(how: string): { exitCode: number; reason: string; message?: string } {
  const code = /^exit code (\d+)$/.exec(how)?.[1]
  if (code !== undefined) return { exitCode: Number(code), reason: code === '0' ? 'Completed' : 'Error' }
  const signal = constants.signals[how as NodeJS.Signals]
  if (signal !== undefined) return { exitCode: 128 + signal, reason: 'Error' }
  return { exitCode: START_ERROR_CODE, reason: 'StartError', message: how }
}
