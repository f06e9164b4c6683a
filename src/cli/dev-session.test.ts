import { once } from 'node:events'
import { createServer } from 'node:net'
import { expect, test } from 'vitest'
import { PortConflictError } from '../server/dev-server.js'
import { freePort } from '../server/free-port.js'
import { portTaken } from './dev-session.js'
import { reportOf } from './failure.js'

const conflict = new PortConflictError('the log')

test('a port that was given and is taken: the report says which option to change', async () => {
  const holder = createServer().listen(0, '127.0.0.1')
  await once(holder, 'listening')
  const { port: taken } = holder.address() as { port: number }
  try {
    const free = await freePort()
    expect(reportOf(await portTaken(conflict, { port: taken, uiPort: free }))).toEqual({
      code: 'PortTaken',
      origin: 'caller',
      why: `port ${taken} (--port) cannot be had: in use already`,
      remedy: 'give another number with --port, or leave it out for a free one',
      exitCode: 3,
    })
    expect(reportOf(await portTaken(conflict, { uiPort: taken })).remedy).toContain('--ui-port')
    expect(reportOf(await portTaken(conflict, { port: free, uiPort: free })).why).toContain('(--port) and')
  } finally {
    holder.close()
  }
})

test('when no port was given it is nothing that an option would mend', async () => {
  expect(await portTaken(conflict, { port: undefined, uiPort: undefined })).toBe(conflict)
})
