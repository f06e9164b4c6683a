import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundleWorkflowCode, DefaultLogger, type WorkerOptions } from '@temporalio/worker'

/** By this variable a run's worlds find the bundle, in whichever process they are. */
const BUNDLE = 'FIREPOOL_TEST_CALLERS'
const WORKFLOWS = fileURLToPath(new URL('./callers.ts', import.meta.url))

/** A vitest `globalSetup`: bundles the callers' workflows once in a run. It takes a core for seconds, and most files have a worker of theirs. */
export default async function setup(): Promise<void> {
  // Once for each project of a run, all in one process.
  if (process.env[BUNDLE]) return
  const logger = new DefaultLogger('ERROR')
  const { code } = await bundleWorkflowCode({ workflowsPath: WORKFLOWS, logger })
  const folder = mkdtempSync(join(tmpdir(), 'firepool-callers-'))
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  const file = join(folder, 'callers.js')
  writeFileSync(file, code)
  process.env[BUNDLE] = file
}

/**
 * The callers' workflows as worker options want them.
 * @param isPlain whether the worker has no plugin and no converters: both are parts of a bundle
 */
export function callersWorkflows(isPlain: boolean): Pick<WorkerOptions, 'workflowBundle' | 'workflowsPath'> {
  const codePath = process.env[BUNDLE]
  return isPlain && codePath ? { workflowBundle: { codePath } } : { workflowsPath: WORKFLOWS }
}
