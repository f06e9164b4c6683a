import { readFileSync } from 'node:fs'
import { SourceMap, type SourceMapPayload } from 'node:module'
import { expect, test } from 'vitest'
import { ENCODED_BUNDLE, WORKFLOW_BUNDLE } from '../../dist/bundle.js'

const MAP = '//# sourceMappingURL=data:application/json;charset=utf-8;base64,'

test.each([WORKFLOW_BUNDLE, ENCODED_BUNDLE])(
  'a bundle is small in memory, and a stack trace in it finds the line of its file',
  (bundle) => {
    const text = readFileSync(bundle, 'utf8')
    const at = text.lastIndexOf(MAP)
    const code = text.slice(0, at)
    const map: SourceMapPayload = JSON.parse(
      Buffer.from(text.slice(at + MAP.length), 'base64').toString('utf8'),
    )
    expect(/[\u0080-\uffff]/.exec(text)).toBeNull()
    expect(map.sourcesContent ?? []).toEqual([])
    expect(text.length - at).toBeLessThan(code.length / 2)
    const lines = code.split('\n')
    const words = 'a pool does not end by it; delete it with'
    const row = lines.findIndex((line) => line.includes(words))
    const origin = new SourceMap(map).findEntry(row, lines[row]!.indexOf(words))
    expect('originalSource' in origin && origin.originalSource).toMatch(/dist\/workflows\/pool\.js$/)
    const source = readFileSync(new URL('../../dist/workflows/pool.js', import.meta.url), 'utf8').split('\n')
    expect('originalLine' in origin && source[origin.originalLine]).toContain(words)
  },
)
