/** The worker's side of the contract with pods of other releases. */
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import { bind } from '../activities/deliver.js'
import { lostReason } from '../activities/pods.js'
import { FirepoolError, type Grant, type Problem } from '../contract/index.js'
import { createRunnerClient, jobDigest } from './client.js'

let server: Server | undefined
afterEach(() => {
  server?.closeAllConnections()
  server?.close()
})

/** A runner that gives one answer to everything. */
async function runnerThatSays(status: number, body: unknown): Promise<string> {
  server = createServer((req, res) => {
    req.resume()
    req.on('end', () => {
      res.writeHead(status, { 'content-type': 'application/json' })
      res.end(JSON.stringify(body))
    })
  })
  await new Promise<void>((resolve) => server!.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

async function refusal(work: Promise<unknown>): Promise<Problem> {
  const error = await work.then(
    () => null,
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(FirepoolError)
  return (error as FirepoolError).problem
}

const SPEC = { command: ['true'] }
const JOB = { v: 1, jobId: 's/1', digest: jobDigest(SPEC), epoch: 1, spec: SPEC } as const
const TYPED = { code: 'PodLost', details: { reason: 'ContractVersion' } }

test.each<[string, number, unknown]>([
  ['an answer', 200, { v: 2, useSeq: { jobs: 1 }, outcome: { kind: 'other' } }],
  ['a refusal', 418, { v: 2, problem: { code: 'NewCode' } }],
  ['an answer of no version that there is', 200, { v: 'x' }],
])('%s of another version is PodLost by name: nothing is guessed from it', async (_, status, body) => {
  const address = await runnerThatSays(status, body)
  const runner = createRunnerClient(address, 'token')
  for (const call of [
    runner.status(),
    runner.jobs(JOB),
    runner.drain({ v: 1, drainId: 'd', epoch: 1, useSeq: 0 }),
  ])
    expect(await refusal(call)).toMatchObject(TYPED)
})

test('a runner that refuses our version is a lost pod for the broker: it is replaced, not asked again', async () => {
  const problem = {
    code: 'PodLost',
    origin: 'infrastructure',
    message: 'v',
    details: { reason: 'ContractVersion' },
  }
  const address = await runnerThatSays(410, { v: 1, problem })
  const grant = { address, pod: 'p', epoch: 1, leaseId: 'l', incarnation: 'i' } as Grant
  const bound = bind(
    { signer: () => 'token', backend: { annotate: () => {} } },
    { grant, owner: { caller: 'c', reuseTag: '' } },
  )
  expect(await refusal(bound)).toMatchObject(TYPED)
  expect(lostReason(await bound.catch((error: unknown) => error))).toContain('PodLost')
})
