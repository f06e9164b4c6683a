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

/** The same with the failure converter of workers that have a payload codec: converters are a part of the bundle. */
export const ENCODED_BUNDLE = join(HERE, `workflow-bundle-encoded-${SDK_VERSION}.js`)

/** The payload converter of Firepool's own worker, for workflows and activities alike: it never throws when it reads. */
export const PAYLOAD_CONVERTER = join(HERE, 'workflows', 'payload-converter.js')

/** Its failure converter when it has a payload codec. */
export const FAILURE_CONVERTER = join(HERE, 'workflows', 'failure-converter.js')

/** The bundle of the demo's own callers, which are built as a user's would be: without Firepool's payload converter. */
export const DEMO_BUNDLE = join(HERE, `demo-bundle-${SDK_VERSION}.js`)

const LOGGER = { trace() {}, debug() {}, info() {}, log() {}, warn: console.error, error: console.error }

/**
 * Loaded once for all workflows, not once for each lease: code that keeps nothing in variables of its modules, so that no workflow can learn
 * anything of another one by it.
 */
const STATELESS = ['broker', 'contract'].map((folder) => join(HERE, folder, 'index.js'))

/**
 * A bundle lives in several copies in a worker, and its source map beside it, decoded. Which line of which file a stack trace means is
 * enough: columns and the sources themselves are nine tenths of the map.
 */
const DEVTOOL = 'inline-nosources-cheap-source-map'

/** One character that is no ASCII, if only in a comment, makes each character of a text of megabytes two bytes. */
const ascii = (code: string) =>
  code.replace(/[\u0080-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)

/** Bundles Firepool's workflows. @returns the code, with its source map inline */
export async function bundleWorkflows(encoded: boolean): Promise<string> {
  const { code } = await bundleWorkflowCode({
    workflowsPath: join(HERE, 'workflows', 'index.js'),
    workflowInterceptorModules: ['intake.js', 'headers.js'].map((name) => join(HERE, 'workflows', name)),
    payloadConverterPath: PAYLOAD_CONVERTER,
    ...(encoded ? { failureConverterPath: FAILURE_CONVERTER } : {}),
    preloadModules: STATELESS,
    webpackConfigHook: (config) => ({ ...config, devtool: DEVTOOL }),
    logger: LOGGER,
  })
  return ascii(code)
}

/** Bundles the demo's workflows. @returns the code, with its source map inline */
export async function bundleDemo(): Promise<string> {
  const { code } = await bundleWorkflowCode({
    workflowsPath: join(HERE, 'demo', 'workflows.js'),
    logger: LOGGER,
  })
  return code
}

/**
 * The bundle as worker options want it: the built file, or bundled now when there is none for the installed SDK.
 * @param encoded for a worker with a payload codec
 */
export async function workflowBundle(encoded = false): Promise<{ codePath: string } | { code: string }> {
  const codePath = encoded ? ENCODED_BUNDLE : WORKFLOW_BUNDLE
  return existsSync(codePath) ? { codePath } : { code: await bundleWorkflows(encoded) }
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
  await put(WORKFLOW_BUNDLE, await bundleWorkflows(false))
  await put(ENCODED_BUNDLE, await bundleWorkflows(true))
  await put(DEMO_BUNDLE, await bundleDemo())
}
