import { createRequire } from 'node:module'
import { cpus, totalmem } from 'node:os'

const require = createRequire(import.meta.url)

/** What a number can only be read beside: machine, versions, server. */
export function machine(server: string): Record<string, string | number> {
  const version = (name: string) => (require(`${name}/package.json`) as { version: string }).version
  return {
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: cpus().length,
    memoryGiB: Math.round(totalmem() / 1024 ** 3),
    node: process.version,
    temporalSdk: version('@temporalio/worker'),
    firepool: version('..'),
    server,
  }
}

/** The q-quantile (0..1) by nearest rank. */
export function quantile(values: number[], q: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(q * sorted.length) - 1))] ?? Number.NaN
}

export function round(value: number, digits = 3): number {
  return Number(value.toFixed(digits))
}
