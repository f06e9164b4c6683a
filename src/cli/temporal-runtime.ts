import { appendFileSync } from 'node:fs'
import { DefaultLogger, type LogEntry, makeTelemetryFilterString, Runtime } from '@temporalio/worker'

/** Instead of a file: where a container's log is looked for. */
export const STANDARD_ERROR = '-'

/**
 * Sets Temporal's runtime up for a command line: its log goes to a file or to standard error, and signals stay ours (by itself it would shut
 * workers down at the first Ctrl-C, before the pods are stopped).
 * @returns a function that adds a line of our own to the log
 */
export function installRuntime(logFile: string): (line: string) => void {
  const append = (line: string) => {
    const dated = `${new Date().toISOString()} ${line}\n`
    try {
      if (logFile === STANDARD_ERROR) process.stderr.write(dated)
      else appendFileSync(logFile, dated, { mode: 0o600 })
    } catch {
      // A full disk must not stop the worker.
    }
  }
  const logger = new DefaultLogger('INFO', ({ level, message, meta }: LogEntry) =>
    append(`${level} ${message} ${meta ? safeJson(meta) : ''}`),
  )
  // Without forwarding, the SDK's core writes its warnings to standard output, into the JSON of --json.
  const logging = { forward: {}, filter: makeTelemetryFilterString({ core: 'WARN', other: 'ERROR' }) }
  Runtime.install({ logger, shutdownSignals: [], telemetryOptions: { logging } })
  return (line) => append(`FIREPOOL ${line}`)
}

function safeJson(value: unknown): string {
  try {
    return JSON.stringify(value, (_, inner: unknown) =>
      typeof inner === 'bigint'
        ? String(inner)
        : inner instanceof Error
          ? (inner.stack ?? inner.message)
          : inner,
    )
  } catch {
    return ''
  }
}
