import { Client } from '@temporalio/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createFirepoolClient } from '../../dist/client/index.js'
import { makeWorld, type World } from '../support/world.js'

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

/** A client whose interceptors put this word into the headers of all that it starts and updates. */
function speaking(word: string) {
  const trace = { data: new TextEncoder().encode(word) }
  const put = <I extends { readonly headers: object }>(input: I): I => ({
    ...input,
    headers: { ...input.headers, trace },
  })
  const { connection, options } = world.client
  return createFirepoolClient({
    client: new Client({
      connection,
      namespace: options.namespace,
      interceptors: {
        workflow: [
          {
            start: (input, next) => next(put(input)),
            startUpdate: (input, next) => next(put(input)),
            startUpdateWithStart: (input, next) =>
              next({
                ...input,
                workflowStartHeaders: { ...input.workflowStartHeaders, trace },
                updateHeaders: { ...input.updateHeaders, trace },
              }),
          },
        ],
      },
    }),
  })
}

/** The words in the headers of what a workflow asked for, by the type of it. */
async function wordsOf(workflowId: string): Promise<string[]> {
  const { events } = await world.client.workflow.getHandle(workflowId).fetchHistory()
  return (events ?? []).flatMap((event) => {
    const activity = event.activityTaskScheduledEventAttributes
    const child = event.startChildWorkflowExecutionInitiatedEventAttributes
    const asked = activity ?? child
    if (!asked) return []
    const type = activity?.activityType?.name ?? child?.workflowType?.name
    const data = asked.header?.fields?.trace?.data
    return [`${type} ${data ? new TextDecoder().decode(data) : 'nothing'}`]
  })
}

test('what a caller put into headers goes on from a one-call job and a session, each job with the headers of its update', async () => {
  await world.pool('heads', { budget: 2 })
  const job = { command: 'true' }
  await speaking('one').runJob({ pool: 'heads', job }, { workflowId: 'one' })
  expect(await wordsOf('one')).toEqual(['firepool.runOnce one'])
  const first = speaking('first').session('heads', { caller: 'ann' })
  await first.run(job)
  const second = speaking('second').session('heads', { caller: 'ann', workflowId: first.workflowId })
  await second.run(job)
  await second.end()
  expect(await wordsOf(first.workflowId)).toEqual([
    'firepool.lease first',
    'firepool.run first',
    'firepool.run second',
  ])
})

test('a pool hands on the headers of nobody: it serves all', async () => {
  await speaking('operator').applyPool({ name: 'deafened', budget: 1, standby: 1 })
  const pool = world.existing('deafened')
  await pool.until('its standby is ready', (s) => s.standby.ready === 1)
  const words = await wordsOf(pool.handle.workflowId)
  expect(words.length).toBeGreaterThan(0)
  expect(words.filter((word) => !word.endsWith(' nothing'))).toEqual([])
})
