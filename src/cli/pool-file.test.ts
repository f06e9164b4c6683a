import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { reportOf } from './failure.js'
import { PoolFileError, type PoolFileProblem, parsePoolFile, readPoolFile, sizeBytes } from './pool-file.js'

function problemsOf(text: string): PoolFileProblem[] {
  try {
    parsePoolFile(text, 'pools.yaml')
  } catch (error) {
    if (error instanceof PoolFileError) return [...error.problems]
    throw error
  }
  return []
}

const short = (text: string) => problemsOf(text).map(({ line, path, why }) => `${line} ${path}: ${why}`)

test('every field of a spec has a key in the file', () => {
  const [spec] = parsePoolFile(
    `
pools:
  - name: h200
    budget: 8
    profile:
      backend: kubernetes
      image: registry.test/jobs:1
      startDelay: { min: 1s, max: 2s }
      secrets: [search-key]
      preload: { imports: [numpy] }
      gpu: { provider: dra, seatSet: 8, trust: shared, duty: 0.2, agent: true, colocation: true }
`,
    'pools.yaml',
  )
  const { profile } = spec!
  if (profile.backend !== 'kubernetes') throw new Error('it is of a cluster')
  expect(profile.gpu).toMatchObject({ seatSet: 8, trust: 'shared', duty: 0.2, agent: true })
  const keyOf = (field: string) => (field === 'fileBytes' ? 'fileSize' : field.replace(/(Ms|Bytes)$/, ''))
  const unknown = (fields: object, around: (key: string) => string) =>
    Object.keys(fields).filter((field) =>
      problemsOf(`pools: [${around(`${keyOf(field)}: {}`)}]`).some(({ why }) =>
        why.startsWith('unknown key'),
      ),
    )
  const inProfile = (text: string) => `{ name: a, budget: 1, profile: { ${text} } }`
  expect(unknown(spec!, (text) => `{ ${text} }`)).toEqual(['v'])
  expect(unknown(profile, inProfile)).toEqual([])
  for (const name of ['limits', 'startDelay', 'preload', 'gpu'] as const)
    expect(unknown(profile[name]!, (text) => inProfile(`${name}: { ${text} }`))).toEqual([])
})

test('a whole file becomes specs with every default', () => {
  const [cpu, other] = parsePoolFile(
    `
pools:
  - name: cpu
    budget: 2
    standby: 1
    keepAlive: 90s
    podLifetime: 3600000
    profile: &profile
      env: { MODE: fast }
      limits: { memory: 512MiB, fileSize: 1.5GiB, openFiles: 100 }
      startDelay: { min: 20s, max: 35s }
      prepare: [sh, -c, 'true']
      preload: { imports: [numpy] }
  - name: other
    budget: 1
    profile: *profile
`,
    'pools.yaml',
  )
  expect(cpu).toMatchObject({
    v: 1,
    name: 'cpu',
    budget: 2,
    guarantee: 2,
    keepAliveMs: 90_000,
    podLifetimeMs: 3_600_000,
  })
  expect(cpu!.profile).toEqual({
    backend: 'local',
    env: { MODE: 'fast' },
    startDelay: { minMs: 20_000, maxMs: 35_000 },
    limits: {
      memoryBytes: 512 * 2 ** 20,
      fileBytes: 1.5 * 2 ** 30,
      openFiles: 100,
      cpuSeconds: null,
      processes: null,
    },
    prepare: ['sh', '-c', 'true'],
    preload: { python: 'python3', imports: ['numpy'], seeds: [] },
  })
  expect(other).toMatchObject({ name: 'other', standby: 0, profile: cpu!.profile })
})

test('unknown keys are named with their line and what was probably meant', () => {
  const text = `pools:
  - name: a
    budgett: 3
    budget: 3
    keepAliveMs: 4
    profile:
      limits:
        foo: 1
`
  expect(problemsOf(text)).toMatchObject([
    { line: 3, path: 'pools[0].budgett', remedy: "did you mean 'budget'?" },
    { line: 5, path: 'pools[0].keepAliveMs', remedy: "did you mean 'keepAlive'?" },
    {
      line: 8,
      path: 'pools[0].profile.limits.foo',
      why: 'unknown key "foo"',
      remedy: 'use one of: memory, cpuSeconds, openFiles, processes, fileSize',
    },
  ])
})

test('all errors of all pools come at once, in the order of the file', () => {
  const text = `pools:
  - name: A_
    budget: -1
    standby: 1000000000
    keepAlive: 99d
  - name: b
    budget: "4"
    maxPods: 1.5
    podStart: soon
    profile:
      backend: k8s
      limits: { memory: 12QiB }
      env: { PORT: 80 }
      startDelay: { min: 20s, max: 3s }
      prepare: pip install
  - budget: 2
    guarantee: 3
  - name: c
    budget: 2
    guarantee: 3
`
  expect(short(text)).toEqual([
    expect.stringMatching(/^2 pools\[0\]\.name: a pool's name has 1 to 63 characters/),
    '3 pools[0].budget: budget is -1',
    '4 pools[0].standby: standby is 1000000000',
    '5 pools[0].keepAlive: keepAlive is 8553600000 ms',
    '7 pools[1].budget: this must be a number, not "4"',
    '8 pools[1].maxPods: maxPods must be a whole number, not 1.5',
    expect.stringMatching(/^9 pools\[1\]\.podStart: this must be a duration/),
    expect.stringMatching(/^11 pools\[1\]\.profile\.backend: .*"k8s"/),
    expect.stringMatching(/^12 pools\[1\]\.profile\.limits\.memory: this must be a size/),
    '13 pools[1].profile.env.PORT: this must be a text, not 80',
    expect.stringMatching(/^14 pools\[1\]\.profile\.startDelay: .*max is 3000 ms/),
    expect.stringMatching(/^15 pools\[1\]\.profile\.prepare: this must be a command as a list/),
    '16 pools[2].name: name is missing',
    '17 pools[2].guarantee: guarantee is 3, more than the budget of 2',
    '20 pools[3].guarantee: guarantee is 3, more than the budget of 2',
  ])
  for (const problem of problemsOf(text)) expect(problem.remedy, problem.path).not.toBe('')
})

test('what contradicts another key is found beside all other errors', () => {
  const text = `pools:
  - name: a
    budgett: 1
    budget: 3
    guarantee: 9
    maxPods: 2
    keepAlive: 99d
    profile:
      env: { FIREPOOL_POD: x }
      limits: 5
  - { name: b, budget: 0, maxPods: 0 }
  - { name: c, budget: 3, maxPods: 3, standby: 2, profile: 5 }
  - { name: d, guarantee: 3, maxPods: 0 }
`
  expect(short(text)).toEqual([
    '3 pools[0].budgett: unknown key "budgett"',
    '5 pools[0].guarantee: guarantee is 9, more than the budget of 3',
    '6 pools[0].maxPods: maxPods is 2, less than the budget of 3 needs',
    '7 pools[0].keepAlive: keepAlive is 8553600000 ms',
    "9 pools[0].profile.env: profile.env may not set FIREPOOL_POD: the runner finds a job's processes by it",
    expect.stringMatching(/^10 pools\[0\]\.profile\.limits: this must be a map .*, not 5$/),
    '11 pools[1].maxPods: maxPods is 0, less than one pod',
    expect.stringMatching(/^12 pools\[2\]\.profile: this must be a map/),
    '13 pools[3].budget: budget is missing',
  ])
})

test.each([
  'pools: &p [*p]',
  '&r { pools: *r }',
  'pools: [&a { name: a, budget: *a }]',
  'pools: [&a { name: a, budget: 1, profile: *a }]',
  'pools: [{ name: a, budget: 1, profile: { env: &e { A: *e } } }]',
  'pools: [{ name: a, budget: 1, profile: { prepare: &e [*e] } }]',
  'pools: [&a { name: a, <<: *a, budget: 1 }]',
])('a cycle is an error whose text has no hole: %s', (text) => {
  for (const { why, remedy } of problemsOf(text)) {
    expect(why).toMatch(/contains itself$|unknown key "\w+"$|alias count/)
    expect(remedy).toMatch(/./)
  }
})

test('two pools with one name', () => {
  const text = 'pools:\n  - { name: a, budget: 1 }\n  - { name: b, budget: 1 }\n  - { name: a, budget: 2 }\n'
  expect(short(text)).toEqual(['4 pools[2].name: two pools have the name "a"; the other one is on line 2'])
})

test.each([
  ['syntax', 'pools:\n  - name: a: b\n', 2],
  ['a tab', 'pools:\n  - name: a\n\tbudget: 1\n', 3],
  ['a key twice', 'pools:\n  - name: a\n    budget: 1\n    budget: 2\n', 4],
  ['two documents', 'pools:\n  - { name: x, budget: 1 }\n---\npools: []\n', 3],
  ['an alias of nothing', 'pools: *nothing\n', 1],
  ['an alias bomb', `a: &a [1]\n${bomb()}pools: *i\n`, 1],
  ['nothing', '', 1],
  ['a comment alone', '# soon\n', 1],
  ['a list', '- name: a\n', 1],
  ['a text', 'pools', 1],
  ['no pools', 'pools: []\n', 1],
  ['a key without a value', 'pools:\n  - name: a\n    budget:\n', 3],
  ['a pool that is a number', 'pools:\n  - { name: a, budget: 1 }\n  - 3\n', 3],
])('%s is an error with its line', (_, text, line) => {
  const problems = problemsOf(text)
  expect(problems.length).toBeGreaterThan(0)
  expect(problems[0]!.line).toBe(line)
})

function bomb(): string {
  const names = 'abcdefghi'.split('')
  return names
    .slice(1)
    .map((name, at) => `${name}: &${name} [${Array(10).fill(`*${names[at]}`).join(', ')}]\n`)
    .join('')
}

test('the report has code 2, and one complaint for each error', () => {
  try {
    parsePoolFile('pools:\n  - nam: a\n    budget: 1\n', 'p.yaml')
    expect.unreachable()
  } catch (error) {
    const report = reportOf(error)
    expect(report.exitCode).toBe(2)
    expect(report.all!.map((p) => p.why)).toEqual([
      'p.yaml:2: pools[0].name: name is missing',
      'p.yaml:2: pools[0].nam: unknown key "nam"',
    ])
  }
})

test('a file that is not there', () => {
  expect(() => readPoolFile('/nonexistent/pools.yaml')).toThrow(/no such file/)
})

test('merge keys take what a map does not have itself, and errors in them have their line', () => {
  const text = `pools:
  - &first
    name: a
    budget: 2
    profile: &profile { limits: { openFiles: 64 } }
  - { <<: *first, name: b, budget: 3 }
  - name: c
    budget: 1
    profile:
      <<: [*profile, { env: { A: x } }]
      prepare: ['true']
`
  const [, b, c] = parsePoolFile(text, 'p.yaml')
  expect(b).toMatchObject({ name: 'b', budget: 3, profile: { limits: { openFiles: 64 } } })
  expect(c!.profile).toMatchObject({ env: { A: 'x' }, limits: { openFiles: 64 }, prepare: ['true'] })
  const wrong = text.replace('openFiles: 64', 'openFiles: 0').replace('{ A: x }', '{ A: 1 }')
  expect(short(wrong)).toEqual([
    expect.stringMatching(/^5 pools\[0\]\.profile\.limits\.openFiles: /),
    expect.stringMatching(/^5 pools\[1\]\.profile\.limits\.openFiles: /),
    expect.stringMatching(/^5 pools\[2\]\.profile\.limits\.openFiles: /),
    expect.stringMatching(/^10 pools\[2\]\.profile\.env\.A: /),
  ])
  expect(problemsOf('pools:\n  - name: a\n    <<: 5\n')).toMatchObject(
    [{ line: 3, why: /merge/i, remedy: 'write <<: *name of a map, or <<: [*one, *other]' }].map((p) => ({
      ...p,
      why: expect.stringMatching(p.why),
    })),
  )
  expect(short('pools:\n  - { "<<": 1, name: a, budget: 1 }\n')).toEqual([
    '2 pools[0]["<<"]: unknown key "<<"',
  ])
  expect(problemsOf('pools:\n  - &a { name: a, budget: 1, profile: { <<: *a } }\n')).toHaveLength(1)
})

test('a pipe is read like a file, and an endless one is not read for ever', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'firepool-pools-'))
  const pipe = join(folder, 'pipe')
  execFileSync('mkfifo', [pipe])
  const write = (command: string) => spawn('sh', ['-c', `${command} > "$0"`, pipe], { stdio: 'ignore' })
  try {
    write("printf 'pools: [{ name: a, budget: 1 }]'")
    expect(readPoolFile(pipe)).toMatchObject([{ name: 'a', budget: 1 }])
    const endless = write('yes')
    expect(() => readPoolFile(pipe)).toThrow(/pipe cannot be read: it has more than 1 MiB; /)
    await once(endless, 'exit')
    expect(() => readPoolFile('/dev/zero')).toThrow(/more than 1 MiB/)
    expect(() => readPoolFile(folder)).toThrow(/it is a folder/)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test.each<[string, Buffer]>([
  ['bytes', Buffer.from([0xff, 0xfe, 0x00, 0x80, 0x0a])],
  ['a program', readFileSync(process.execPath).subarray(0, 100_000)],
  ['UTF-16', Buffer.from('\ufeffpools: []', 'utf16le')],
  ['NUL in text', Buffer.from('pools:\0 []')],
])('a file of %s is no pool file, in a few words', (_, bytes) => {
  const folder = mkdtempSync(join(tmpdir(), 'firepool-pools-'))
  const file = join(folder, 'p.yaml')
  try {
    writeFileSync(file, bytes)
    expect(() => readPoolFile(file)).toThrow(`the pool file ${file} cannot be read: it is no text in UTF-8; `)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test.each([
  ['a long word', 'x'.repeat(100_000)],
  ['a long key', `${'x'.repeat(900)}\u0007: 1\npools: [{ ${'y'.repeat(900)}: 1, name: a, budget: 1 }]`],
  ['a long alias', `pools: *${'x'.repeat(100_000)}`],
  ['long lines of brackets', '}{[,*&!|>%@`"'.repeat(5_000)],
  ['control characters', `pools:\n  - name: "${'\\u001b[31m'.repeat(500)}"\n    budget: 1\n`],
  ['many errors', `pools:\n${'  - { nam: a }\n'.repeat(5_000)}`],
])('garbage is cut: %s', (_, text) => {
  try {
    parsePoolFile(text, 'p.yaml')
    expect.unreachable()
  } catch (error) {
    const { all } = reportOf(error)
    expect(all!.length).toBeGreaterThan(0)
    expect(all!.length).toBeLessThanOrEqual(21)
    for (const { why, remedy } of all!) expect(`${why}${remedy}`.length).toBeLessThan(600)
  }
})

test('sizes', () => {
  expect(sizeBytes('512MiB')).toBe(536_870_912)
  expect(sizeBytes('1.5 kib')).toBe(1_536)
  expect(sizeBytes(7)).toBe(7)
  expect(sizeBytes('12 apples')).toBe('12 apples')
})

const gpuPool = (gpu: string) => `pools:
  - name: h200
    budget: 1
    profile:
      backend: kubernetes
      image: a/b:1
      gpu:
${gpu.replaceAll(/^/gm, '        ')}
`

test('a share of a GPU becomes one of the contract', () => {
  const [spec] = parsePoolFile(gpuPool('provider: hami\nmemory: 16GiB\ncores: 30'), 'pools.yaml')
  const { profile } = spec!
  expect(profile).toMatchObject({ gpu: { provider: 'hami', memoryBytes: 2 ** 34, cores: 30, count: 1 } })
})

test.each<[string, string[]]>([
  ['provider: dra\nque: rl', ['9 pools[0].profile.gpu.que: unknown key "que"']],
  ['count: 2', ['7 pools[0].profile.gpu.provider: provider is missing']],
  [
    'provider: dra\ncolocation: "yes"',
    ['9 pools[0].profile.gpu.colocation: this must be true or false, not "yes"'],
  ],
  [
    'provider: dra\nagent: please',
    ['9 pools[0].profile.gpu.agent: this must be true or false, not "please"'],
  ],
  ['provider: hami\nmemory: 5', ['9 pools[0].profile.gpu.memory: profile.gpu.memory is 5']],
  ['provider: dra\ncount: 3', ['9 pools[0].profile.gpu.count: profile.gpu.count is 3']],
  [
    'provider: kai\nqueue: rl\nshare: 0.5\nidle: park\nseatSet: 4',
    [
      '12 pools[0].profile.gpu.seatSet: profile.gpu.seatSet is 4: provider kai cannot make several pods see the same 4 GPUs',
    ],
  ],
])('what is wrong with a gpu is found on its line: %s', (gpu, expected) => {
  expect(short(gpuPool(gpu)).map((line) => line.replace(/; it must be.*/, ''))).toEqual(expected)
})

describe('pods of a cluster', () => {
  const inCluster = (profile: string) => `pools:
  - name: a
    budget: 1
    profile:
      backend: kubernetes
${profile}`

  test('a template is taken as it is written', () => {
    const text = inCluster(`      image: registry.example/firepool:1
      prePull: true
      template:
        spec:
          tolerations: [{ key: gpu, operator: Exists }]
`)
    expect(parsePoolFile(text, 'pools.yaml')[0]?.profile).toMatchObject({
      backend: 'kubernetes',
      namespace: null,
      image: 'registry.example/firepool:1',
      prePull: true,
      template: { spec: { tolerations: [{ key: 'gpu', operator: 'Exists' }] } },
    })
  })

  test('what a template may not say is named on its own line', () => {
    const text = inCluster(`      image: firepool:1
      imag: x
      template:
        metadata:
          labels: { firepool.dev/pool: x }
        spec:
          containers:
            - name: runner
              livenessProbe: {}
`)
    expect(problemsOf(text)).toMatchObject([
      { line: 7, path: 'pools[0].profile.imag', remedy: "did you mean 'image'?" },
      {
        line: 10,
        path: 'pools[0].profile.template.metadata.labels["firepool.dev/pool"]',
        why: expect.stringContaining('is what Firepool knows its own pods by'),
      },
    ])
    const rest = text.replace('      imag: x\n', '').replace('firepool.dev/pool', 'team')
    expect(problemsOf(rest)).toMatchObject([
      { line: 13, path: 'pools[0].profile.template.spec.containers[0].livenessProbe' },
    ])
  })

  test('an image that is missing or wrong, and a field of the other backend', () => {
    expect(short(inCluster('      prePull: false\n'))).toEqual([
      expect.stringMatching(/^4 pools\[0\]\.profile\.image: profile\.image is the image of the pods/),
    ])
    expect(short(inCluster('      image: "A B"\n      gpu: { count: 1 }\n'))).toEqual([
      expect.stringMatching(/^6 pools\[0\]\.profile\.image: profile\.image is the image/),
      expect.stringMatching(/^7 pools\[0\]\.profile\.gpu\.provider: provider is missing/),
    ])
    const local = inCluster('      image: firepool:1\n').replace('kubernetes', 'local')
    expect(short(local)).toEqual([
      expect.stringMatching(/^6 pools\[0\]\.profile\.image: profile\.image is of pods in a cluster/),
    ])
  })
})
