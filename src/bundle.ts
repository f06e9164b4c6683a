import { existsSync } from 'node:fs'
import { mkdir, rename, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundleWorkflowCode } from '@temporalio/worker'

const HERE = dirname(fileURLToPath(import.meta.url))

/** Where `npm run build` leaves the workflows as one file: bundling takes seconds that no worker should spend at its start. */
export const WORKFLOW_BUNDLE = join(HERE, 'workflow-bundle.js')

/** The payload converter of Firepool's own worker, for workflows and activities alike: it never throws when it reads. */
export const PAYLOAD_CONVERTER = join(HERE, 'workflows', 'payload-converter.js')

/** Bundles Firepool's workflows. @returns the code, with its source map inline */
export async function bundleWorkflows(): Promise<string> {
  const { code } = await bundleWorkflowCode({
    workflowsPath: join(HERE, 'workflows', 'index.js'),
    payloadConverterPath: PAYLOAD_CONVERTER,
    logger: { trace() {}, debug() {}, info() {}, log() {}, warn: console.error, error: console.error },
  })
  return code
}

/** The bundle as worker options want it: the built file, or bundled now when this runs from a tree without one. */
export async function workflowBundle(): Promise<{ codePath: string } | { code: string }> {
  return existsSync(WORKFLOW_BUNDLE) ? { codePath: WORKFLOW_BUNDLE } : { code: await bundleWorkflows() }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const code = await bundleWorkflows()
  const draft = `${WORKFLOW_BUNDLE}.${process.pid}`
  await mkdir(dirname(draft), { recursive: true })
  await writeFile(draft, code)
  await rename(draft, WORKFLOW_BUNDLE)
}
