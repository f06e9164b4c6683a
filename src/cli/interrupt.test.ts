import { afterEach, expect, test, vi } from 'vitest'
import { type Interrupt, takeInterrupts } from './interrupt.js'

let interrupt: Interrupt | undefined
afterEach(() => {
  interrupt?.release()
  vi.useRealTimers()
})

test.each(['SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGHUP'] as const)('%s asks for the end', (signal) => {
  interrupt = takeInterrupts(() => {})
  process.emit(signal)
  expect(interrupt.signal.aborted).toBe(true)
  interrupt.release()
  expect(process.listenerCount(signal)).toBe(0)
})

test('one press that is heard twice is one; the second press calls again', () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  const again = vi.fn()
  interrupt = takeInterrupts(again)
  process.emit('SIGINT')
  process.emit('SIGINT')
  expect(interrupt.signal.aborted).toBe(true)
  expect(again).not.toHaveBeenCalled()
  vi.advanceTimersByTime(1_000)
  process.emit('SIGTERM')
  expect(again).toHaveBeenCalledTimes(1)
})
