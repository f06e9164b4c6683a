import { EventEmitter } from 'node:events'
import { expect, test } from 'vitest'
import { Interrupted, listenForEnd, unlessAborted } from './interruption.js'

/** Signals of our own making, and a clock to move. */
function world() {
  const source = new EventEmitter()
  const clock = { ms: 0 }
  const forced: string[] = []
  const end = listenForEnd(
    (by) => forced.push(by),
    source,
    () => clock.ms,
  )
  return { source, clock, forced, end }
}

test('the first signal aborts, with the exit code that shells expect', () => {
  const { source, end, forced } = world()
  expect(end.signal.aborted).toBe(false)
  source.emit('SIGTERM', 'SIGTERM')
  expect(end.signal.reason).toBeInstanceOf(Interrupted)
  expect((end.signal.reason as Interrupted).exitCode).toBe(143)
  expect(forced).toEqual([])
})

test('the second signal forces, but not the echo of the first', () => {
  const { source, clock, forced } = world()
  source.emit('SIGINT', 'SIGINT')
  clock.ms = 20
  source.emit('SIGINT', 'SIGINT')
  expect(forced).toEqual([])
  clock.ms = 2_000
  source.emit('SIGINT', 'SIGINT')
  expect(forced).toEqual(['SIGINT'])
})

test('once closed, signals are the process own business again', () => {
  const { source, end } = world()
  const signals = ['SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGHUP']
  for (const signal of signals) expect(source.listenerCount(signal)).toBe(1)
  end.close()
  for (const signal of signals) expect(source.listenerCount(signal)).toBe(0)
})

test('work goes on until it is done or aborted, whichever is first', async () => {
  const controller = new AbortController()
  await expect(unlessAborted(controller.signal, Promise.resolve(1))).resolves.toBe(1)
  await expect(unlessAborted(controller.signal, Promise.reject(new Error('broken')))).rejects.toThrow(
    'broken',
  )
  const waiting = unlessAborted(controller.signal, new Promise(() => {}))
  controller.abort(new Interrupted('SIGINT'))
  await expect(waiting).rejects.toThrow('SIGINT')
  await expect(unlessAborted(controller.signal, Promise.resolve(1))).rejects.toThrow('SIGINT')
})
