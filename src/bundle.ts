import { existsSync } from 'node:fs'
import { mkdir, rename, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundleWorkflowCode } from '@temporalio/worker'

const HERE = dirname(fileURLToPath(import.meta.url))

/**
 * The Temporal SDK that will run the bundles: the one of the project that Firepool is installed in. A bundle holds the SDK's
 * workflow side, so one that was built with another version is not used.
 */
const { version: SDK_VERSION } = createRequire(import.meta.url)('@temporalio/worker/package.json') as {
  version: string
}

/** Where `npm run build` leaves the workflows as one file: bundling takes seconds that no worker should spend at its start. */
export const WORKFLOW_BUNDLE = join(HERE, `workflow-bundle-${SDK_VERSION}.js`)

/** The payload converter of Firepool's own worker, for workflows and activities alike: it never throws when it reads. */
export const PAYLOAD_CONVERTER = join(HERE, 'workflows', 'payload-converter.js')

/** The same for the demo's own callers, which are built as a user's would be: without Firepool's payload converter. */
export const DEMO_BUNDLE = join(HERE, `demo-bundle-${SDK_VERSION}.js`)

const LOGGER = { trace() {}, debug() {}, info() {}, log() {}, warn: console.error, error: console.error }

/** Bundles Firepool's workflows. @returns the code, with its source map inline */
export async function bundleWorkflows(): Promise<string> {
  const { code } = await bundleWorkflowCode({
    workflowsPath: join(HERE, 'workflows', 'index.js'),
    payloadConverterPath: PAYLOAD_CONVERTER,
    logger: LOGGER,
  })
  return code
}

/** Bundles the demo's workflows. @returns the code, with its source map inline */
export async function bundleDemo(): Promise<string> {
  const { code } = await bundleWorkflowCode({
    workflowsPath: join(HERE, 'demo', 'workflows.js'),
    logger: LOGGER,
  })
  return code
}

/** The bundle as worker options want it: the built file, or bundled now when there is none for the installed SDK. */
export async function workflowBundle(): Promise<{ codePath: string } | { code: string }> {
  return existsSync(WORKFLOW_BUNDLE) ? { codePath: WORKFLOW_BUNDLE } : { code: await bundleWorkflows() }
}

/** See workflowBundle. */
export async function demoBundle(): Promise<{ codePath: string } | { code: string }> {
  return existsSync(DEMO_BUNDLE) ? { codePath: DEMO_BUNDLE } : { code: await bundleDemo() }
}

/** Writes a file in one go: a worker that starts meanwhile reads the old one or the new one. */
async function put(path: string, code: string): Promise<void> {
  const draft = `${path}.${process.pid}`
  await mkdir(dirname(path), { recursive: true })
  await writeFile(draft, code)
  await rename(draft, path)
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await put(WORKFLOW_BUNDLE, await bundleWorkflows())
  await put(DEMO_BUNDLE, await bundleDemo())
}
