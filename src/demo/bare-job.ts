import { spawn } from 'node:child_process'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { durationMs } from '../contract/duration.js'
import { problem } from '../contract/errors.js'
import type { JobFile, JobOutcome, JobResult, JobSpec } from '../contract/job.js'
import { TIMEOUT } from '../contract/limits.js'

/**
 * Runs a job as a bare process in a folder of this machine: no pod, no isolation, no limits but the job's own time
 * limit. The tests of the workloads use it, and it is the floor under every measurement of a runner.
 */
export async function runBare(job: JobSpec, folder: string, jobId = 'bare'): Promise<JobOutcome> {
  for (const file of job.files ?? []) {
    const path = join(folder, file.path)
    await mkdir(dirname(path), { recursive: true })
    await writeFile(path, file.content, { encoding: file.encoding ?? 'utf8', mode: file.mode ?? 0o644 })
  }
  const limitMs = durationMs(job.timeout ?? TIMEOUT.jobMs) ?? TIMEOUT.jobMs
  const ended = await execute(job, folder, limitMs)
  if (ended.timedOut) {
    return {
      kind: 'problem',
      problem: problem('JobTimeout', `ran longer than ${limitMs} ms; raise its timeout`),
    }
  }
  const { files, missing } = await collect(job.collect ?? [], folder)
  const size = (text: string) => ({ bytes: Buffer.byteLength(text), truncated: false })
  const result: JobResult = {
    v: 1,
    jobId,
    exitCode: ended.exitCode,
    signal: ended.signal,
    stdout: ended.stdout,
    stderr: ended.stderr,
    output: { stdout: size(ended.stdout), stderr: size(ended.stderr) },
    files,
    missing,
    durationMs: ended.durationMs,
    pod: 'none',
    epoch: 0,
  }
  return { kind: 'result', result }
}

interface Ended {
  exitCode: number | null
  signal: string | null
  stdout: string
  stderr: string
  durationMs: number
  timedOut: boolean
}

function execute(job: JobSpec, folder: string, limitMs: number): Promise<Ended> {
  const argv = typeof job.command === 'string' ? ['/bin/sh', '-c', job.command] : job.command
  const startedMs = performance.now()
  return new Promise((resolve, reject) => {
    // A group of its own, so that the time limit ends everything that the job started.
    const child = spawn(argv[0] ?? '', argv.slice(1), {
      cwd: join(folder, job.cwd ?? '.'),
      env: { PATH: process.env.PATH ?? '', HOME: folder, ...job.env },
      detached: true,
    })
    let timedOut = false
    const timer = setTimeout(() => {
      timedOut = true
      if (child.pid !== undefined) process.kill(-child.pid, 'SIGKILL')
    }, limitMs)
    const text = { stdout: '', stderr: '' }
    for (const stream of ['stdout', 'stderr'] as const) {
      child[stream].setEncoding('utf8').on('data', (chunk: string) => {
        text[stream] += chunk
      })
    }
    child.on('error', reject)
    child.on('close', (exitCode, signal) => {
      clearTimeout(timer)
      resolve({ exitCode, signal, ...text, durationMs: performance.now() - startedMs, timedOut })
    })
    // A job that ends without reading its input is no fault of ours.
    child.stdin.on('error', () => {})
    child.stdin.end(job.stdin ?? '')
  })
}

async function collect(paths: string[], folder: string): Promise<Pick<JobResult, 'files' | 'missing'>> {
  const files: JobFile[] = []
  const missing: JobResult['missing'] = []
  for (const path of paths) {
    try {
      files.push({ path, content: await readFile(join(folder, path), 'utf8') })
    } catch {
      missing.push({ path, reason: 'does not exist' })
    }
  }
  return { files, missing }
}
