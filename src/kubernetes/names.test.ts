import { expect, test } from 'vitest'
import { anchorName, podLabel, podName, podSelector } from './names.js'

const DNS_LABEL = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/

test('a name tells the generation, is the same at each try, and fits a host name', () => {
  expect(podName({ pod: 'cpu-1a2b3c-7', generation: 3 })).toBe('cpu-1a2b3c-7-g3')
  const long = `${'p'.repeat(60)}--1a2b3c-123456`
  expect(podName({ pod: long, generation: 12 })).toMatch(DNS_LABEL)
  expect(podName({ pod: long, generation: 12 })).toMatch(/-g12$/)
  expect(podName({ pod: long, generation: 12 })).toBe(podName({ pod: long, generation: 12 }))
  // The node agent tells a token's pod by this rule (node-agent/brokertoken).
  const known = 'a-pool-whose-name-is-so-long-that-no-label-could-hold.3-it-00017-2'
  expect(podName({ pod: known, generation: 12 })).toBe(
    'a-pool-whose-name-is-so-long-that-no-label-could-h-4e7b05cb-g12',
  )
})

test('long names that begin alike differ, as labels too', () => {
  const long = 'p'.repeat(70)
  const names = [1, 2].map((n) => podName({ pod: `${long}-${n}`, generation: 1 }))
  expect(new Set(names).size).toBe(2)
  const labels = [1, 2].map((n) => podLabel(`${long}-${n}`))
  expect(new Set(labels).size).toBe(2)
  for (const label of labels) expect(label).toMatch(DNS_LABEL)
})

test('two deployments in one namespace have anchors and selectors of their own', () => {
  expect(anchorName('cpu.1', '0123456789abcdef')).toBe('firepool-cpu-1-01234567')
  expect(anchorName('cpu', 'a')).not.toBe(anchorName('cpu', 'b'))
  expect(podSelector('a', { pool: 'cpu' })).toContain(
    'firepool.dev/broker=a,firepool.dev/pod,firepool.dev/pool=cpu',
  )
})
