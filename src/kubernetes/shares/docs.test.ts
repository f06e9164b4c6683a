/** docs/gpu-sharing.md says of each provider what the code does. */
import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { GPU_CAPABILITIES, GPU_FIELDS, GPU_PROVIDERS } from '../../contract/index.js'
import { SHARE_PROVIDERS } from './providers.js'
import { gpuOrder } from './share.fixture.js'

const text = readFileSync(new URL('../../../docs/gpu-sharing.md', import.meta.url), 'utf8')
const section = (title: string) => text.split(`\n## ${title}\n`)[1]!.split('\n## ')[0]!
const rows = (title: string) =>
  [...section(title).matchAll(/^\| `(.*) \|$/gm)].map(([, row]) =>
    `\`${row}`.split('|').map((cell) => cell.trim()),
  )

test('what each can do', () => {
  const declared = GPU_PROVIDERS.map((provider) => {
    const can = GPU_CAPABILITIES[provider]
    return [
      `\`${provider}\``,
      can.colocation,
      can.isolation,
      can.cap === 'none' ? 'not bounded' : 'fixed at bind',
      can.seatFrom,
      can.maxSharers === null ? '' : String(can.maxSharers),
      can.counts.join(', '),
      can.seatSets.join(', '),
      can.noParking === null ? 'yes' : 'no',
    ]
  })
  expect(rows('Providers')).toEqual(declared)
})

test('every key, and which providers have those that not all have', () => {
  const table = rows('What a profile says')
  const inFile = (field: string) => (field === 'memoryBytes' ? 'memory' : field)
  expect(table.map(([key]) => key)).toEqual(GPU_FIELDS.map((field) => `\`${inFile(field)}\``))
  const shareFields = new Set(Object.values(GPU_CAPABILITIES).flatMap(({ fields }) => fields))
  for (const field of shareFields) {
    const meaning = table.find(([key]) => key === `\`${inFile(field)}\``)![1]!
    const providers = GPU_PROVIDERS.filter((provider) => GPU_CAPABILITIES[provider].fields.includes(field))
    expect(meaning, field).toContain(`: ${providers.map((provider) => `\`${provider}\``).join(', ')}`)
  }
})

test('what is put into a pod, and what is looked for', () => {
  const table = rows('What must be in the cluster')
  for (const provider of GPU_PROVIDERS) {
    const [, inPod, lookedFor] = table.find(([name]) => name === `\`${provider}\``)!
    const order = gpuOrder(provider)
    const { labels, annotations, limits, claims } = SHARE_PROVIDERS[provider].podParts({
      ...order,
      gpu: order.profile.gpu,
      broker: 'b',
    })
    const names = [labels, annotations, limits].flatMap((part) => Object.keys(part ?? {}))
    for (const name of [...names, ...(claims ?? []).map((claim) => claim.name)])
      expect(inPod, provider).toContain(`\`${name}\``)
    expect(lookedFor, provider).toMatch(/./)
  }
})
