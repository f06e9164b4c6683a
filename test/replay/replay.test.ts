/**
 * Histories that older code wrote replay with today's. A failure here means: running workflows of users and running
 * pools would be stuck after an upgrade. Put the change behind patched() (src/workflows/patches.ts); record anew
 * (npm run record-histories) only before the first release.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import {
  bundleWorkflowCode,
  DefaultLogger,
  type ReplayWorkerOptions,
  Runtime,
  Worker,
} from '@temporalio/worker'
import { ActivityCancellationType, ParentClosePolicy } from '@temporalio/workflow'
import { beforeAll, describe, expect, test } from 'vitest'
import { PAYLOAD_CONVERTER, WORKFLOW_BUNDLE } from '../../dist/bundle.js'
import type { LeaseInput } from '../../dist/contract/lease.js'
import type { RunInput } from '../../dist/contract/run.js'
import { FirepoolPlugin } from '../../dist/plugin/index.js'
import { leaseWorkflowId } from '../../dist/workflows/lease-id.js'
import { PATCHES } from '../../dist/workflows/patches.js'
import { type Command, commandSinks } from '../support/command-log.js'
import { historyNames, historyText, privateIn, readHistory, workflowOf } from '../support/histories.js'

/** Bundling has the machine to itself as little as any other test: a hang, not a speed limit. */
const HANG_MS = 120_000
const SIZE_LIMIT_BYTES = 1_200_000
const logger = new DefaultLogger('ERROR')
Runtime.install({ logger })

/** Callers are replayed as a user's worker would: bundled from their source, with the library as it was built. */
let callers: ReplayWorkerOptions
const firepool: ReplayWorkerOptions = {
  workflowBundle: { codePath: WORKFLOW_BUNDLE },
  dataConverter: { payloadConverterPath: PAYLOAD_CONVERTER },
}
beforeAll(async () => {
  const workflowsPath = fileURLToPath(new URL('../support/callers.ts', import.meta.url))
  const workflowInterceptorModules = [fileURLToPath(new URL('../support/command-log.ts', import.meta.url))]
  callers = {
    workflowBundle: await bundleWorkflowCode({ workflowsPath, workflowInterceptorModules, logger }),
  }
}, HANG_MS)

const names = historyNames()

test.each(names)('%s replays', async (name) => {
  const history = readHistory(name)
  const { type, workflowId } = workflowOf(history)
  if (type.startsWith('firepool.')) await Worker.runReplayHistory(firepool, history, workflowId)
  else await commandsOf(name)
})

const replayed = new Map<string, Command[]>()

/** What today's library asks of the server when it goes through a history again. */
async function commandsOf(name: string): Promise<Command[]> {
  const known = replayed.get(name)
  if (known) return known
  const history = readHistory(name)
  const commands: Command[] = []
  const sinks = commandSinks((command) => commands.push(command))
  await Worker.runReplayHistory({ ...callers, sinks }, history, workflowOf(history).workflowId)
  replayed.set(name, commands)
  return commands
}

describe('a caller', () => {
  test('asks for a lease by a child of its own whose id is bounded, new each time, and which ends with it', async () => {
    const leases = (await commandsOf('caller-revoked')).filter(({ kind }) => kind === 'child')
    expect(leases).toHaveLength(2)
    for (const { type, args, options } of leases) {
      const [input] = args as [LeaseInput]
      expect(type).toBe('firepool.lease')
      expect(options).toMatchObject({
        workflowId: leaseWorkflowId('recorded', input.caller!, input.slot!, input.leaseId).value,
        parentClosePolicy: ParentClosePolicy.REQUEST_CANCEL,
        taskQueue: 'firepool-workflows',
      })
      // Who holds it is one run of the caller.
      expect(input).toMatchObject({ v: 1, replyTo: 'signal', holder: { workflowId: expect.any(String) } })
      expect(input.holder!.runId).toBe(input.holder!.firstExecutionRunId)
    }
    expect(new Set(leases.map(({ args }) => (args[0] as LeaseInput).leaseId)).size).toBe(2)
  })

  test('that is cancelled leaves its lease to its close: the notice still arrives while it cleans up', async () => {
    await commandsOf('caller-cancelled')
    // As it replays: today's library asks for no cancel of the child either. A release does.
    const cancels = (name: string) =>
      readHistory(name).events.some(
        ({ eventType }) => eventType === 'EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED',
      )
    expect([cancels('caller-cancelled'), cancels('caller-loop')]).toEqual([false, true])
  })

  test('names a job by its sandbox and the number of the call, the same after another acquire', async () => {
    const jobs = (await commandsOf('caller-revoked')).filter(({ type }) => type === 'firepool.run')
    const [first, revoked, again] = jobs.map(({ args }) => args[0] as RunInput)
    expect(first!.jobId).toMatch(/^[0-9a-f-]{36}\/1$/)
    expect(revoked!.jobId).toBe(first!.jobId!.replace(/1$/, '2'))
    expect(again!.jobId).toBe(revoked!.jobId)
    expect(again!.grant.leaseId).not.toBe(revoked!.grant.leaseId)
  })

  test('runs the jobs of one sandbox one after the other, in the order of its calls, also when they are given at once', async () => {
    const jobs = (await commandsOf('caller-together')).filter(({ type }) => type === 'firepool.run')
    expect(jobs.map(({ args }) => (args[0] as RunInput).jobId!.split('/')[1])).toEqual(['1', '2', '3'])
    // One that came while another runs would not replay: the next is scheduled when the one before is over.
    const order = readHistory('caller-together')
      .events.map(({ eventType }) => /^EVENT_TYPE_ACTIVITY_TASK_(SCHEDULED|COMPLETED)$/.exec(eventType)?.[1])
      .filter((each) => each !== undefined)
    expect(order).toEqual(['SCHEDULED', 'COMPLETED', 'SCHEDULED', 'COMPLETED', 'SCHEDULED', 'COMPLETED'])
  })

  test("starts a job again under another id, with onPodLost: 'rerun' alone", async () => {
    const jobIds = async (name: string) =>
      (await commandsOf(name))
        .filter(({ type }) => type === 'firepool.run')
        .map(({ args }) => (args[0] as RunInput).jobId)
    const [lost, again] = await jobIds('caller-pod-lost-rerun')
    expect(again).toBe(`${lost}.1`)
    expect(await jobIds('caller-pod-lost')).toHaveLength(1)
  })

  test('hears of a cancel in time, and retries of a job go on until its own time is over', async () => {
    const [job] = (await commandsOf('caller-cancels-a-job')).filter(({ type }) => type === 'firepool.run')
    expect(job!.options).toMatchObject({
      taskQueue: 'firepool',
      heartbeatTimeout: 2_500,
      cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    })
    expect(job!.options.retry).not.toHaveProperty('maximumAttempts')
  })

  test('passes what its own interceptors put into headers on to leases, jobs and short jobs', async () => {
    const commands = [...(await commandsOf('caller-loop')), ...(await commandsOf('caller-short'))]
    expect(new Set(commands.map(({ type }) => type))).toEqual(
      new Set(['firepool.lease', 'firepool.run', 'firepool.runShort']),
    )
    for (const { type, trace } of commands) expect(trace, type).toBe('of the caller')
  })

  test('sets no search attributes: one that is not registered, or too long, would end it', async () => {
    for (const name of names.filter((each) => each.startsWith('caller-'))) {
      for (const { options } of await commandsOf(name))
        expect([options.searchAttributes, options.typedSearchAttributes], name).toEqual([
          undefined,
          undefined,
        ])
      // The SDK's own, of patched(), is registered everywhere.
      for (const event of readHistory(name).events)
        if (event.eventType === 'EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES')
          expect(attributesOf(event), name).toEqual(['TemporalChangeVersion'])
    }
  })
})

function attributesOf(event: Record<string, unknown>): string[] {
  const { searchAttributes } = event.upsertWorkflowSearchAttributesEventAttributes as {
    searchAttributes: { indexedFields: object }
  }
  return Object.keys(searchAttributes.indexedFields)
}

test('a pool awaits no local activity: past 100 buffered events its task would be closed by force, and done again', () => {
  const pools = names.filter((name) => name.startsWith('pool-'))
  expect(pools.length).toBeGreaterThan(4)
  for (const name of pools) expect(historyText(readHistory(name)), name).not.toContain('core_local_activity')
})

test('a worker with the plugin replays what one without it did, and the reverse', async () => {
  const workflowsPath = fileURLToPath(new URL('../support/callers.ts', import.meta.url))
  const plugins = [new FirepoolPlugin()]
  const sinks = commandSinks(() => undefined)
  const withPlugin = { workflowBundle: await bundleWorkflowCode({ workflowsPath, logger, plugins }) }
  for (const name of ['caller-loop', 'caller-short']) {
    const history = readHistory(name)
    const { workflowId } = workflowOf(history)
    for (const options of [withPlugin, { ...callers, sinks }])
      await Worker.runReplayHistory(options, history, workflowId)
  }
})

test('there is a history of each path', () => {
  expect(names).toEqual(
    expect.arrayContaining([
      'caller-cancelled',
      'caller-cancels-a-job',
      'caller-loop',
      'caller-pod-lost',
      'caller-pod-lost-rerun',
      'caller-recalled',
      'caller-refused',
      'caller-revoked',
      'caller-short',
      'caller-silent',
      'caller-together',
      'lease-cancelled',
      'lease-failed',
      'lease-moved',
      'lease-pod-lost',
      'lease-recalled',
      'lease-released',
      'pool-carried-and-deleted',
      'pool-continued-as-new',
      'pool-head-continued',
      'pool-head-deleted',
      'pool-rolled',
      'pool-rollout',
      'pool-shard-left',
      'pool-shard-paused',
      'pool-shard-refuses',
      'pool-template-before',
      'run-job',
      'run-job-cancelled',
      'run-job-rerun',
      'run-job-silent',
      'run-job-timeout',
      'session-ended',
      'session-renewed',
    ]),
  )
})

test('a history tells nothing of the machine that recorded it, and all of them are small', () => {
  let bytes = 0
  for (const name of names) {
    const text = historyText(readHistory(name))
    expect(privateIn(text), name).toBeNull()
    bytes += text.length
  }
  expect(bytes).toBeLessThan(SIZE_LIMIT_BYTES)
})

describe('patches', () => {
  const folder = fileURLToPath(new URL('../../src/workflows', import.meta.url))
  const used = readdirSync(folder)
    .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
    .flatMap((file) => [
      ...readFileSync(`${folder}/${file}`, 'utf8').matchAll(/\b(?:patched|deprecatePatch)\(\s*([^)]*)\)/g),
    ])
    .map(([, id]) => id!)
    // In a comment: patched() and patched('firepool-N').
    .filter((id) => id !== '' && id !== "'firepool-N'")

  test('each id that is used is listed, and each that is listed is used', () => {
    expect([...new Set(used)].sort()).toEqual(
      Object.keys(PATCHES)
        .map((id) => `'${id}'`)
        .sort(),
    )
  })

  test('each has a history from before it and one from after it', () => {
    for (const [id, { historyBefore, historyAfter }] of Object.entries(PATCHES)) {
      expect(names, id).toEqual(expect.arrayContaining([historyBefore, historyAfter]))
      const marks = (name: string) => historyText(readHistory(name)).includes(id)
      expect([marks(historyBefore), marks(historyAfter)], id).toEqual([false, true])
    }
  })
})
