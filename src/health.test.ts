import { afterEach, expect, test } from 'vitest'
import { type Health, serveHealth } from './health.js'

let health: Health
let reasons: string[]
const open = async () => {
  reasons = ['it starts']
  health = await serveHealth(0, () => reasons)
}
afterEach(() => health.close())

async function ask(path: string, method = 'GET') {
  const answer = await fetch(`http://127.0.0.1:${health.port}${path}`, { method })
  return [answer.status, (await answer.text()).trim()]
}

test('it lives from the beginning, and is ready when nothing speaks against it any more', async () => {
  await open()
  expect(await ask('/livez')).toEqual([200, 'lives'])
  expect(await ask('/readyz')).toEqual([503, 'it starts'])
  reasons = []
  expect(await ask('/readyz')).toEqual([200, 'ready'])
  expect(await ask('/readyz?verbose')).toEqual([200, 'ready'])
  reasons = ['first', 'second']
  expect(await ask('/readyz')).toEqual([503, 'first\nsecond'])
  expect((await ask('/livez'))[0]).toBe(200)
})

test('metrics are what is counted at the moment', async () => {
  let value = 0
  health = await serveHealth(
    0,
    () => [],
    () => [{ name: 'a', help: 'A.', type: 'gauge', samples: [[{}, ++value]] }],
  )
  const answer = await fetch(`http://127.0.0.1:${health.port}/metrics`)
  expect(answer.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/)
  expect(await answer.text()).toBe('# HELP a A.\n# TYPE a gauge\na 1\n')
  expect((await ask('/metrics'))[1]).toContain('a 2')
})

test('other paths and methods are refused', async () => {
  await open()
  expect((await ask('/'))[0]).toBe(404)
  expect((await ask('/readyz', 'POST'))[0]).toBe(405)
})

test('a port that is taken is an error', async () => {
  await open()
  await expect(serveHealth(health.port, () => [])).rejects.toMatchObject({ code: 'EADDRINUSE' })
})
