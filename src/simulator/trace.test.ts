import { describe, expect, it } from 'vitest'
import { resultOf } from './result.js'
import { simulate } from './script.fixture.js'
import { TraceJobs } from './trace-jobs.js'
import { TraceReader, type TraceRow } from './trace-reader.js'

/** A file that arrives in pieces of so many bytes. */
async function* pieces(text: string, bytes: number): AsyncGenerator<Uint8Array> {
  const all = new TextEncoder().encode(text)
  for (let at = 0; at < all.length; at += bytes) yield all.subarray(at, at + bytes)
}

async function read(text: string, bytes = 7) {
  const reader = new TraceReader(pieces(text, bytes))
  const rows: TraceRow[] = []
  for (let row = await reader.next(); row; row = await reader.next()) rows.push(row)
  return { rows, reader }
}

const ROW = { slot: '0', tenant: 'default', priority: 5 }

describe('a trace', () => {
  it('of JSONL: one object a line, in pieces that split anything', async () => {
    const text = [
      '{"atSeconds": 0, "caller": "b\u00fccher", "runSeconds": 1.5}',
      '',
      '{"atSeconds": 2.25, "caller": "b", "runSeconds": 0, "slot": "1", "tenant": "t", "priority": 9}',
    ].join('\r\n')
    for (const bytes of [1, 2, 1_000]) {
      const { rows, reader } = await read(text, bytes)
      expect(rows).toEqual([
        { ...ROW, atMs: 0, caller: 'b\u00fccher', runMs: 1_500 },
        { atMs: 2_250, caller: 'b', runMs: 0, slot: '1', tenant: 't', priority: 9 },
      ])
      expect(reader.problems).toBe(0)
      expect(reader.bytes).toBe(Buffer.byteLength(text))
    }
  })

  it('of CSV: columns in any order, quotes, empty cells for what is not said', async () => {
    const text = '\ufeffcaller,atSeconds, runSeconds,slot\n"a, ""b""",0,1,\nc,1e1,2,x\n'
    const { rows } = await read(text)
    expect(rows).toEqual([
      { ...ROW, atMs: 0, caller: 'a, "b"', runMs: 1_000 },
      { ...ROW, atMs: 10_000, caller: 'c', runMs: 2_000, slot: 'x' },
    ])
  })

  const good = '{"atSeconds":5,"caller":"a","runSeconds":1}'
  it.each([
    ['no JSON', '{"atSeconds":6', /it is no JSON/, /one whole JSON object/],
    ['no object', '[1]', /not an object/, /one JSON object/],
    [
      'an unknown field',
      '{"atSeconds":6,"caller":"a","runSecond":1}',
      /unknown field "runSecond"/,
      /did you mean 'runSeconds'/,
    ],
    ['a missing field', '{"atSeconds":6,"caller":"a"}', /runSeconds is missing/, /each row has/],
    ['a negative moment', '{"atSeconds":-1,"caller":"a","runSeconds":1}', /atSeconds is -1/, /0 or more/],
    [
      'a text for a number',
      '{"atSeconds":"6","caller":"a","runSeconds":1}',
      /atSeconds is "6"/,
      /number of seconds/,
    ],
    ['a negative duration', '{"atSeconds":6,"caller":"a","runSeconds":-2}', /runSeconds is -2/, /from 0 to/],
    [
      'an endless job',
      '{"atSeconds":6,"caller":"a","runSeconds":1e9}',
      /runSeconds is 1000000000/,
      /from 0 to/,
    ],
    ['no caller', '{"atSeconds":6,"caller":"","runSeconds":1}', /caller is ""/, /at most 512 bytes/],
    [
      'a long slot',
      `{"atSeconds":6,"caller":"a","runSeconds":1,"slot":"${'x'.repeat(129)}"}`,
      /slot is/,
      /at most 128 bytes/,
    ],
    [
      'a priority that is none',
      '{"atSeconds":6,"caller":"a","runSeconds":1,"priority":10}',
      /priority is 10/,
      /from 0 to 9/,
    ],
    [
      'an earlier moment',
      '{"atSeconds":4,"caller":"a","runSeconds":1}',
      /at 4 s, before line 1 at 5 s/,
      /sort the trace/,
    ],
    ['the same twice', good, /line 1 is of the same caller and slot at the same moment/, /different slots/],
    ['a line without an end', `{"caller":"${'x'.repeat(70_000)}"}`, /more than 64 KiB/, /is this a trace/],
  ])('with %s leaves that line out by its number, and goes on', async (_, line, why, remedy) => {
    const { rows, reader } = await read(
      [good, line, '{"atSeconds":7,"caller":"z","runSeconds":1}'].join('\n'),
      999,
    )
    expect(rows.map(({ caller }) => caller)).toEqual(['a', 'z'])
    expect(reader.problems).toBe(1)
    expect(reader.first).toEqual([
      { line: 2, why: expect.stringMatching(why), remedy: expect.stringMatching(remedy) },
    ])
  })

  it('counts all lines that are wrong, and keeps the first', async () => {
    const { reader } = await read(`${good}\n${'nothing\n'.repeat(500)}`, 999)
    expect(reader.problems).toBe(500)
    expect(reader.first.map(({ line }) => line)).toEqual(Array.from({ length: 20 }, (_, n) => n + 2))
  })

  it.each([
    ['hello', /line 1: this header has no column atSeconds, caller, runSeconds; begin a CSV with a header/],
    ['atSeconds,caller,runSeconds,slots', /line 1: unknown column "slots"; did you mean 'slot'\?/],
    ['atSeconds,caller,runSeconds,caller', /line 1: column "caller" is there twice/],
  ])('whose first line is %s is refused', async (text, message) => {
    await expect(read(text)).rejects.toThrow(message)
  })

  it('with a CSV line of too few values says how many there are', async () => {
    const { reader } = await read('atSeconds,caller,runSeconds\n1,a\n1,a,b\n')
    expect(reader.first).toMatchObject([
      { line: 2, why: 'the line has 2 values, and the header 3 columns' },
      { line: 3, why: 'runSeconds is "b"' },
    ])
  })
})

describe('jobs of a trace', () => {
  const jobs = (text: string) =>
    new TraceJobs({ name: 'trace.jsonl', bytes: text.length, reader: new TraceReader(pieces(text, 64)) })

  it('are asked for at their moments, counted from the first; who overlaps with itself waits for its slot', async () => {
    const text = [
      'atSeconds,caller,runSeconds',
      '1000000,a,2',
      '1000031,a,10', // its pod is idle for it
      '1000033,a,1', // and waits for the job before it
      'x,a,1',
      '1000100,b,1', // another caller: a cold start
    ].join('\n')
    const simulation = simulate(jobs(text), { spec: { keepAliveMs: 20_000 } })
    await simulation.run()
    const result = resultOf(simulation)
    // 30,560 and 32,560; the second at 31,000 has to wait for the first, at 32,570 its pod is idle; the third at 42,630 + 80.
    expect(result.jobs).toEqual({ asked: 4, finished: 4, unserved: 0, unfinished: 0 })
    expect(result.shares).toMatchObject({ warm: 0.5, cold: 0.5 })
    expect(result.startMs.max).toBe(30_560)
    expect(result.leftOut).toMatchObject({ lines: 1, first: [{ line: 5 }] })
    expect(result.heldOver).toMatchObject({ session: null, life: null, peak: null })
    expect(result.invariantViolations).toBe(0)
  })

  it('of many thousand rows are read as they are needed', async () => {
    const rows = Array.from({ length: 5_000 }, (_, n) => `${n / 10},c${n % 40},0.5`)
    const simulation = simulate(jobs(['atSeconds,caller,runSeconds', ...rows].join('\n')), {
      spec: { budget: 60, standby: 4 },
      inspection: 'sampled',
    })
    let most = 0
    await simulation.run({ onProgress: ({ workload }) => (most = Math.max(most, workload.progress!)) })
    expect(resultOf(simulation).jobs).toMatchObject({ asked: 5_000, finished: 5_000 })
    expect(most).toBe(1)
  })

  it('that cannot be read at all end the run with the first line that was wrong', async () => {
    await expect(simulate(jobs('{"caller":1}\n')).run()).rejects.toThrow(/line 1: atSeconds is missing/)
    await expect(simulate(jobs('')).run()).rejects.toThrow(/has no rows/)
  })
})
