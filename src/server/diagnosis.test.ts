import { expect, test } from 'vitest'
import { whyUnreachable } from './diagnosis.js'

test('a URL is no address, and is not looked up as the name of a host', async () => {
  expect(await whyUnreachable('http://127.0.0.1:7233', {})).toMatch(/host:port, without http/)
})
