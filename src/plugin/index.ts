/** `firepool/plugin`: what a caller registers in its own Temporal worker. */
import { fileURLToPath } from 'node:url'
import type { BundleOptions, BundlerPlugin, WorkerOptions, WorkerPlugin } from '@temporalio/worker'
import { type ShortJobOptions, shortJobActivities } from './short.js'

export { type ShortJobOptions, shortJobActivities }

/** Needed in the workflows as well: `workflowInterceptorModules` of bundleWorkflowCode, for who bundles without plugins. */
export const shortJobsInWorkflows = fileURLToPath(new URL('./in-workflow.js', import.meta.url))

/**
 * Gives a caller's own worker the local activities of short jobs: `plugins: [new FirepoolPlugin()]`, in Worker.create
 * and, for a bundle that is made ahead, in bundleWorkflowCode. Without it jobs declared `short` run as every job does.
 */
export class FirepoolPlugin implements WorkerPlugin, BundlerPlugin {
  readonly name = 'firepool'

  constructor(private readonly options: ShortJobOptions = {}) {}

  configureWorker(options: WorkerOptions): WorkerOptions {
    return { ...options, activities: { ...options.activities, ...shortJobActivities(this.options) } }
  }

  configureBundler(options: BundleOptions): BundleOptions {
    const modules = options.workflowInterceptorModules ?? []
    return { ...options, workflowInterceptorModules: [...modules, shortJobsInWorkflows] }
  }
}
