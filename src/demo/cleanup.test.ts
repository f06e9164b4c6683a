import { expect, test } from 'vitest'
import { Cleanup } from './cleanup.js'

test('what was made last is undone first, once, and a failure keeps nothing else from being undone', async () => {
  const cleanup = new Cleanup()
  const undone: string[] = []
  cleanup.add('remove the folder', () => undone.push('folder'))
  cleanup.add('stop the server', () => Promise.reject(new Error('it hangs')))
  cleanup.add('stop the pods', async () => undone.push('pods'))
  expect(cleanup.started).toBe(false)
  const both = await Promise.all([cleanup.run(), cleanup.run()])
  expect(both).toEqual([['stop the server: it hangs'], ['stop the server: it hangs']])
  expect(undone).toEqual(['pods', 'folder'])
  expect(cleanup.started).toBe(true)
})
