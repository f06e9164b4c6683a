import { expect, test } from 'vitest'
import { Counter, metricsText } from './metrics.js'

test('is what Prometheus reads: help, type and samples, with labels escaped', () => {
  const counter = new Counter()
  counter.add({ verb: 'get', code: '200' })
  counter.add({ verb: 'get', code: '200' }, 2)
  counter.add({ verb: 'list', code: '200' })
  const text = metricsText([
    { name: 'a_total', help: 'Counts\\ of a\nkind', type: 'counter', samples: counter.samples() },
    { name: 'b', help: 'None.', type: 'gauge', samples: [] },
    {
      name: 'c_seconds',
      help: 'C.',
      type: 'gauge',
      samples: [
        [{}, Number.POSITIVE_INFINITY],
        [{ x: 'a"b\\c\nd' }, 0.5],
      ],
    },
  ])
  expect(text).toBe(
    [
      '# HELP a_total Counts\\\\ of a\\nkind',
      '# TYPE a_total counter',
      'a_total{verb="get",code="200"} 3',
      'a_total{verb="list",code="200"} 1',
      '# HELP c_seconds C.',
      '# TYPE c_seconds gauge',
      'c_seconds +Inf',
      'c_seconds{x="a\\"b\\\\c\\nd"} 0.5',
      '',
    ].join('\n'),
  )
})
