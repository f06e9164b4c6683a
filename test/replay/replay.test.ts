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
import { beforeAll, describe, expect, test } from 'vitest'
import { PAYLOAD_CONVERTER, WORKFLOW_BUNDLE } from '../../dist/bundle.js'
import { FirepoolPlugin } from '../../dist/plugin/index.js'
import { PATCHES } from '../../dist/workflows/patches.js'
import { historyNames, historyText, privateIn, readHistory, workflowOf } from '../support/histories.js'

const SIZE_LIMIT_BYTES = 1_000_000
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
  callers = { workflowBundle: await bundleWorkflowCode({ workflowsPath, logger }) }
})

const names = historyNames()

test.each(names)('%s replays', async (name) => {
  const history = readHistory(name)
  const { type, workflowId } = workflowOf(history)
  await Worker.runReplayHistory(type.startsWith('firepool.') ? firepool : callers, history, workflowId)
})

test('a worker with the plugin replays what one without it did, and the reverse', async () => {
  const workflowsPath = fileURLToPath(new URL('../support/callers.ts', import.meta.url))
  const plugins = [new FirepoolPlugin()]
  const withPlugin = { workflowBundle: await bundleWorkflowCode({ workflowsPath, logger, plugins }) }
  for (const name of ['caller-loop', 'caller-short']) {
    const history = readHistory(name)
    const { workflowId } = workflowOf(history)
    for (const options of [withPlugin, callers]) await Worker.runReplayHistory(options, history, workflowId)
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
      'pool-template-before',
      'run-job',
      'run-job-cancelled',
      'run-job-rerun',
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
