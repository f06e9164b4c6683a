/** Payloads encrypted with AES-256-GCM on both sides: everything works, the server sees no plaintext, and poison wedges nobody. */
import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Client } from '@temporalio/client'
import {
  ApplicationFailure,
  defaultPayloadConverter,
  type Payload,
  type PayloadCodec,
} from '@temporalio/common'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createFirepoolClient, FirepoolError } from '../../dist/client/index.js'
import { type JobResult, type Problem, poolWorkflowId, QUEUE, WORKFLOW } from '../../dist/contract/index.js'
import type { Ran } from '../support/callers.js'
import { EncryptionCodec } from '../support/encryption-codec.mjs'
import { holderOf, marker } from '../support/holder.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

const newKey = () => randomBytes(32).toString('base64')
const KEYS = { first: newKey(), older: newKey() }
const ours = () => new EncryptionCodec(KEYS)
/** A key that Firepool's worker has not. */
const STRANGERS = { unknown: newKey() }
const theirs = new EncryptionCodec(STRANGERS)

/** What must be seen nowhere: in commands, environments, files, input, output, and in what failures say. */
const CANARY = `canary-${marker()}`
/** What is sent in the clear, to see that looking finds something. */
const CONTROL = `control-${marker()}`

/** Where a server's files hold a text. */
function filesWith(world: World, text: string): string[] {
  return readdirSync(world.dir)
    .filter((name) => name.startsWith('temporal.db') || name.endsWith('.log'))
    .filter((name) => readFileSync(join(world.dir, name)).includes(text))
}

/** All texts and bytes of a raw answer. (As JSON it would hide bytes in base64.) */
function shown(raw: unknown): string {
  if (typeof raw === 'string') return raw
  if (raw instanceof Uint8Array) return Buffer.from(raw).toString('latin1')
  if (typeof raw !== 'object' || raw === null) return ''
  return Object.entries(raw)
    .map(([key, value]) => `${key} ${shown(value)}`)
    .join(' ')
}

describe('a codec that encrypts', () => {
  let world: World
  beforeAll(async () => {
    const dataConverter = {
      firepool: { payloadCodecs: [ours()] },
      callers: { payloadCodecs: [ours()] },
    }
    world = await makeWorld({ serverFile: true, plugin: true, dataConverter })
  })
  afterAll(() => world?.close())

  const secretJob = (more = '') => ({
    command: `echo ${CANARY} $SECRET; cat; cat f; ${more}`,
    env: { SECRET: CANARY },
    stdin: CANARY,
    files: [{ path: 'f', content: CANARY }],
    collect: ['f'],
  })
  const everything = new RegExp(`(${CANARY}[\\s]*){4}`)

  test('jobs, leases, tokens, queries, updates and failures work', async () => {
    const firepool = createFirepoolClient({ client: world.client })
    const profile = { env: { PROFILE_SECRET: CANARY } }
    const { spec } = await firepool.applyPool({ name: 'secret', budget: 4, standby: 1, profile })
    const pool = world.client.workflow.getHandle(poolWorkflowId('secret'))

    // A held lease, and what a description of its workflow shows while a job runs.
    const holder = await holderOf(world, 'secret', { caller: 'holder' })
    const { command, ...more } = secretJob()
    await holder.job(command, more)
    expect((await holder.nth(1)).result.stdout).toMatch(everything)
    const { command: long } = secretJob('until [ -e go ]; do sleep 0.1; done')
    await holder.job(long, more)
    await waitUntil('the job runs', async () => {
      const { raw } = await holder.handle.describe()
      return (raw.pendingActivities ?? []).some(({ heartbeatDetails }) => heartbeatDetails) ? raw : null
    })
    const running = [await holder.handle.describe(), await pool.describe()].map(({ raw }) => shown(raw))

    // One job in one call, one that fails, a short one, and a caller in another SDK.
    expect((await firepool.runJob({ pool: 'secret', caller: 'once', job: secretJob() })).stdout).toMatch(
      everything,
    )
    const refused = await firepool
      .runJob({ pool: 'secret', caller: 'once', job: { command: [`/no/${CANARY}`] } })
      .catch((error: unknown) => error)
    expect((refused as FirepoolError).problem).toMatchObject({
      code: 'InvalidRequest',
      message: expect.stringContaining(`/no/${CANARY}`),
    })
    const loop = await world.start<Ran[]>('loop', [
      { pool: 'secret', caller: 'loop', jobs: [{ ...secretJob(), short: true }, secretJob()], release: true },
    ])
    for (const { result } of await loop.result()) expect(result.stdout).toMatch(everything)
    const byToken = await world.start<JobResult>('byToken', [{ pool: 'secret', job: secretJob() }])
    expect((await byToken.result()).stdout).toMatch(everything)

    // Updates and queries of the client, the carried state, and the end.
    expect(await firepool.poolSpec('secret')).toEqual(spec)
    expect((await firepool.resizePool('secret', { budget: 3 })).budget.operator).toBe(3)
    const firstRun = (await pool.describe()).runId
    await pool.executeUpdate('firepool.upgrade')
    await waitUntil('the pool has continued as new', async () => (await pool.describe()).runId !== firstRun)
    await expect(firepool.resizePool('secret', { budget: -1 })).rejects.toThrow(FirepoolError)
    expect((await firepool.pods('secret')).rows.map(({ caller }) => caller)).toContain('holder')
    expect((await pool.describe()).memo).toBeDefined()
    for (const text of running) expect(text).not.toContain(CANARY)
  })

  test('the server has stored no plaintext', async () => {
    const plain = new Client({ connection: world.client.connection })
    await plain.workflow.start('nobodyRunsThis', {
      workflowId: 'control',
      taskQueue: 'nobody',
      args: [CONTROL],
    })
    for await (const { workflowId, runId } of world.client.workflow.list()) {
      const history = shown(await world.client.workflow.getHandle(workflowId, runId).fetchHistory())
      expect(history, workflowId).not.toContain(CANARY)
      if (workflowId === 'control') expect(history).toContain(CONTROL)
    }
    expect(filesWith(world, CONTROL)).not.toEqual([])
    expect(filesWith(world, CANARY)).toEqual([])
  })
})

describe('what a codec cannot decode', () => {
  /** Fails while its key service is away. */
  class Moody implements PayloadCodec {
    down = false
    failures = 0
    private readonly codec = ours()
    private check() {
      if (!this.down) return
      this.failures++
      throw new Error('the key service does not answer')
    }
    async encode(payloads: Payload[]) {
      this.check()
      return this.codec.encode(payloads)
    }
    async decode(payloads: Payload[]) {
      this.check()
      return this.codec.decode(payloads)
    }
  }

  /** The callers' own: reads all, and encrypts with the strangers' key what holds this text. */
  const STRANGE = 'of a stranger'
  const mixed: PayloadCodec = {
    encode: (payloads) =>
      Promise.all(
        payloads.map(async (payload) => {
          const codec = Buffer.from(payload.data ?? []).includes(STRANGE) ? theirs : ours()
          return (await codec.encode([payload]))[0]!
        }),
      ),
    decode: (payloads) => new EncryptionCodec({ ...KEYS, ...STRANGERS }).decode(payloads),
  }

  let world: World
  const moody = new Moody()
  beforeAll(async () => {
    const dataConverter = { firepool: { payloadCodecs: [moody] }, callers: { payloadCodecs: [mixed] } }
    world = await makeWorld({ dataConverter })
  })
  afterAll(() => world?.close())

  const encode = async (codec: PayloadCodec, value: unknown) =>
    (await codec.encode([defaultPayloadConverter.toPayload(value)]))[0]!

  /** One payload of each kind. */
  async function poisons(): Promise<Payload[]> {
    const damaged = await encode(ours(), { v: 1 })
    damaged.data = Uint8Array.from(damaged.data!).map((byte, at) => (at === 20 ? byte ^ 1 : byte))
    const cut = await encode(ours(), { v: 1 })
    return [await encode(theirs, { v: 1 }), damaged, { ...cut, data: cut.data!.slice(0, 3) }]
  }

  async function rawSignal(workflowId: string, signalName: string, payload: Payload) {
    await world.client.workflowService.signalWorkflowExecution({
      namespace: world.client.options.namespace,
      workflowExecution: { workflowId },
      signalName,
      input: { payloads: [payload] },
    })
  }

  /** The Problem of a workflow or an update that was refused. */
  async function refusal(work: Promise<unknown>): Promise<Problem> {
    const error = await work.then(
      () => new Error('it was not refused'),
      (reason: unknown) => reason,
    )
    for (let cause = error; cause instanceof Error; cause = cause.cause as Error) {
      if (cause instanceof ApplicationFailure) return cause.details![0] as Problem
    }
    throw error
  }

  async function works(pool: string, caller = marker()): Promise<void> {
    const loop = await world.start<Ran[]>('loop', [
      { pool, caller, jobs: [{ command: 'echo on' }], release: true },
    ])
    expect((await loop.result())[0]!.result.stdout).toBe('on\n')
  }

  test('as a signal: a pool counts it and goes on, a lease and a runJob take no notice', async () => {
    const pool = await world.pool('poison', { budget: 1 })
    const holder = await holderOf(world, 'poison')
    await holder.job('echo 1')
    await holder.nth(1)
    const signals = ['request', 'release', 'token', 'setBudget', 'resize', 'apply', 'drain', 'pause'].map(
      (name) => `firepool.${name}`,
    )
    const bad = await poisons()
    const read = signals.slice(0, 6)
    for (const signal of read)
      for (const payload of bad) await rawSignal(poolWorkflowId('poison'), signal, payload)
    const status = await pool.until('all were counted', (s) => s.poison.count === read.length * bad.length)
    expect(status.poison.last).toMatch(
      /firepool\.apply.*the payload codec of Firepool's worker cannot decode it/,
    )
    expect(status.leases).toBe(1)

    const [lease] = status.leased
    const leaseWorkflow = await waitUntil('the lease workflow is listed', async () => {
      const query = 'WorkflowType="firepool.lease" AND ExecutionStatus="Running"'
      for await (const { workflowId } of world.client.workflow.list({ query }))
        if (workflowId.endsWith(lease!.leaseId)) return workflowId
      return null
    })
    const job = createFirepoolClient({ client: world.client }).runJob(
      { pool: 'poison', caller: 'waits', job: { command: 'echo 2' } },
      { workflowId: 'poisoned-run' },
    )
    await pool.until('it waits', (s) => s.queue.capacity === 1)
    for (const workflowId of [leaseWorkflow, 'poisoned-run'])
      for (const signal of ['firepool.grant', 'firepool.ended'])
        for (const payload of bad) await rawSignal(workflowId, signal, payload)
    await holder.job('echo 3')
    expect((await holder.nth(2)).result.stdout).toBe('3\n')
    await pool.handle.signal('firepool.resize', { v: 1, budget: 4 })
    expect(await job).toMatchObject({ stdout: '2\n' })
    await holder.finish()
    await works('poison')
  })

  test('as an argument of an update, a workflow or an activity: refused by name', async () => {
    const pool = await world.pool('refused')
    // It understands the answer, so that we see it.
    const strange: PayloadCodec = { encode: (p) => theirs.encode(p), decode: (p) => ours().decode(p) }
    const stranger = new Client({
      connection: world.client.connection,
      dataConverter: { payloadCodecs: [strange] },
    })
    const said = { code: 'InvalidRequest', message: expect.stringContaining('cannot be decoded') }
    const handle = stranger.workflow.getHandle(poolWorkflowId('refused'))
    for (const [update, input] of [
      ['firepool.resize', { v: 1, budget: 9 }],
      ['firepool.acquire', {}],
    ] as const)
      expect(await refusal(handle.executeUpdate(update, { args: [input] })), update).toMatchObject(said)
    for (const [workflow, input] of [
      [WORKFLOW.runJob, { pool: 'refused', job: { command: 'true' } }],
      [WORKFLOW.lease, { pool: 'refused' }],
      [WORKFLOW.pool, { v: 1, spec: { name: 'x', budget: 1 } }],
    ] as const) {
      const workflowId = `strange-${workflow}`
      await stranger.workflow.start(workflow, { workflowId, taskQueue: QUEUE.workflows, args: [input] })
      expect(await refusal(world.client.workflow.getHandle(workflowId).result()), workflow).toMatchObject(
        said,
      )
    }
    const direct = await world.start<string>('activity', ['firepool.run', STRANGE])
    expect(await refusal(direct.result())).toMatchObject(said)
    expect((await pool.status()).budget.inForce).toBe(4)
    await works('refused')
  })

  test('in the memo of a holder: reconcile still finds the others that are gone', async () => {
    const client = new Client({
      connection: world.client.connection,
      dataConverter: { payloadCodecs: [mixed] },
    })
    const workflowId = 'secretive'
    const { firstExecutionRunId: runId } = await client.workflow.start('holder', {
      workflowId,
      taskQueue: 'callers',
      args: [{ pool: 'nowhere' }],
      memo: { text: STRANGE },
    })
    await expect(world.client.workflow.getHandle(workflowId).describe()).rejects.toThrow("no key 'unknown'")
    const lease = (leaseId: string, id: string) => ({
      leaseId,
      holder: { workflowId: id, runId },
      leaseWorkflowId: id,
    })
    const leases = [lease('held', workflowId), lease('leaked', 'never-there')]
    const batch = { v: 1, pool: 'nowhere', effects: [{ id: 'd', kind: 'describe', leases }] }
    const described = await world.start('activity', ['firepool.describeHolders', batch, QUEUE.broker])
    expect(await described.result()).toEqual({
      v: 1,
      results: [{ id: 'd', result: { kind: 'described', closed: ['leaked'] } }],
    })
    await client.workflow.getHandle(workflowId).signal('finish', 'complete')
  })

  test('while the codec itself is out of order: all stands still, and nothing is lost', async () => {
    const pool = await world.pool('moody', { standby: 2 })
    const { workflow } = new Client({
      connection: world.client.connection,
      dataConverter: { payloadCodecs: [ours()] },
    })
    moody.down = true
    const loops = ['a', 'b'].map((caller) =>
      workflow.execute('loop', {
        workflowId: `moody-${caller}`,
        taskQueue: 'callers',
        args: [{ pool: 'moody', caller, jobs: [{ command: 'true' }], release: true }],
      }),
    )
    await workflow.getHandle(poolWorkflowId('moody')).signal('firepool.resize', { v: 1, standby: 1 })
    await waitUntil('tasks failed for it', () => moody.failures > 10)
    moody.down = false
    await Promise.all(loops)
    const status = await pool.until('all is given back', (s) => s.leases === 0 && s.standby.target === 1)
    expect(status.poison.count).toBe(0)
    expect(status.grants.warm + status.grants.standby + status.grants.cold).toBe(2)
  })
})
