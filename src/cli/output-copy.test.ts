import { expect, test } from 'vitest'
import { OutputCopy } from './output-copy.js'

function makeCopy() {
  const order: string[] = []
  const out: Record<'stdout' | 'stderr', Buffer> = { stdout: Buffer.alloc(0), stderr: Buffer.alloc(0) }
  const notes: string[] = []
  const copy = new OutputCopy({
    write: (stream, bytes) => {
      order.push(`${stream} ${bytes.toString('latin1')}`)
      out[stream] = Buffer.concat([out[stream], bytes])
    },
    note: (text) => notes.push(text),
  })
  const take = (stream: 'stdout' | 'stderr', offset: number, bytes: string | Buffer, jobId = 'j') =>
    copy.take({ v: 1, jobId, stream, offset, base64: Buffer.from(bytes).toString('base64') })
  return { copy, take, order, out, notes }
}

const result = (text: string, facts: { bytes?: number; truncated?: boolean; file?: string } = {}) => ({
  stdout: text,
  stderr: '',
  output: {
    stdout: { bytes: Buffer.byteLength(text), truncated: false, ...facts },
    stderr: { bytes: 0, truncated: false },
  },
})

test('chunks come out in order, and the result adds nothing', () => {
  const { copy, take, order } = makeCopy()
  take('stdout', 0, 'a')
  take('stderr', 0, 'x')
  take('stdout', 1, 'b')
  expect(
    copy.finish({
      ...result('ab'),
      stderr: 'x',
      output: { stdout: { bytes: 2, truncated: false }, stderr: { bytes: 1, truncated: false } },
    }),
  ).toBe(true)
  expect(order).toEqual(['stdout a', 'stderr x', 'stdout b'])
})

test('what comes twice, or overlaps, is written once', () => {
  const { take, out } = makeCopy()
  take('stdout', 0, 'abc')
  take('stdout', 0, 'abc')
  take('stdout', 1, 'bcde')
  expect(out.stdout.toString()).toBe('abcde')
})

test('what is missing comes from the result, also after a gap', () => {
  const { copy, take, out, notes } = makeCopy()
  take('stdout', 0, 'abc')
  take('stdout', 5, 'fg')
  take('stdout', 7, 'h')
  expect(out.stdout.toString()).toBe('abc')
  expect(copy.finish(result('abcdefgh'))).toBe(true)
  expect(out.stdout.toString()).toBe('abcdefgh')
  expect(notes).toEqual([])
})

test('a chunk may end within a character', () => {
  const { copy, take, out } = makeCopy()
  take('stdout', 0, Buffer.from('aü').subarray(0, 2))
  copy.finish(result('aüb'))
  expect(out.stdout.toString()).toBe('aüb')
})

test('bytes that are not UTF-8: exact when streamed, found again in the replaced text when not', () => {
  const bytes = Buffer.from([0x61, 0xff, 0xfe, 0x62, 0x63])
  const text = bytes.toString('utf8')
  const whole = makeCopy()
  whole.take('stdout', 0, bytes)
  expect(whole.copy.finish(result(text, { bytes: 5, file: 'f' }))).toBe(true)
  expect(whole.out.stdout).toEqual(bytes)
  const part = makeCopy()
  part.take('stdout', 0, bytes.subarray(0, 3))
  expect(part.copy.finish(result(text, { bytes: 5, file: 'f' }))).toBe(false)
  expect(part.out.stdout).toEqual(bytes)
  expect(part.notes).toHaveLength(1)
})

const truncated = (head: string, tail: string, bytes: number) =>
  result(`${head}\n[firepool: 9 of ${bytes} bytes left out here; all are in .jobs/f]\n${tail}`, {
    bytes,
    truncated: true,
    file: '.jobs/f',
  })

test('of a truncated result, head and tail fill what was not streamed, and a note says what is lost', () => {
  const nothing = makeCopy()
  expect(nothing.copy.finish(truncated('head', 'tail', 100))).toBe(false)
  expect(nothing.out.stdout.toString()).toBe('headtail')
  expect(nothing.notes[0]).toMatch(/^92 of 100 bytes of stdout are missing/)
  const most = makeCopy()
  most.take('stdout', 0, `head${'x'.repeat(93)}`)
  expect(most.copy.finish(truncated('head', 'tail', 100))).toBe(true)
  expect(most.out.stdout.toString()).toBe(`head${'x'.repeat(93)}ail`)
  expect(most.notes).toEqual([])
})

test('what is no chunk of this job is refused', () => {
  const { copy, take } = makeCopy()
  expect(take('stdout', 0, 'a')).toBe(true)
  expect(take('stdout', 1, 'b', 'other')).toBe(false)
  for (const garbage of [null, 3, {}, { v: 1, jobId: 'j', stream: 'stdin', offset: 0, base64: '' }])
    expect(copy.take(garbage)).toBe(false)
})
