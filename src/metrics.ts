/** Metrics as text, in Prometheus' exposition format 0.0.4. */

export const METRICS_CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

export type Labels = Readonly<Record<string, string>>

/** All samples of one name. */
export interface Metric {
  /** with its unit, and `_total` when it counts */
  name: string
  help: string
  type: 'gauge' | 'counter'
  samples: readonly (readonly [labels: Labels, value: number])[]
}

export function metricsText(metrics: readonly Metric[]): string {
  return metrics.map(textOf).join('')
}

function textOf({ name, help, type, samples }: Metric): string {
  if (samples.length === 0) return ''
  const lines = samples.map(([labels, value]) => `${name}${labelsText(labels)} ${numberText(value)}`)
  return `# HELP ${name} ${escaped(help)}\n# TYPE ${name} ${type}\n${lines.join('\n')}\n`
}

function labelsText(labels: Labels): string {
  const pairs = Object.entries(labels).map(
    ([name, value]) => `${name}="${escaped(value).replaceAll('"', '\\"')}"`,
  )
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`
}

function escaped(text: string): string {
  return text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')
}

function numberText(value: number): string {
  if (Number.isNaN(value)) return 'NaN'
  if (Number.isFinite(value)) return String(value)
  return value > 0 ? '+Inf' : '-Inf'
}

/** Counts by labels. The labels' values are of a bounded set: each combination is kept for ever. */
export class Counter {
  readonly #counts = new Map<string, [Labels, number]>()

  add(labels: Labels, by = 1): void {
    const key = JSON.stringify(labels)
    const known = this.#counts.get(key)
    if (known) known[1] += by
    else this.#counts.set(key, [labels, by])
  }

  samples(): [Labels, number][] {
    return [...this.#counts.values()].map(([labels, count]) => [labels, count])
  }
}
