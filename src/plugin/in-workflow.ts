/** Loaded into the workflows of a worker that has the plugin. It runs in their sandbox: a workflow cannot see its worker otherwise. */
import type { WorkflowInterceptors } from '@temporalio/workflow'
import { pluginIsHere } from '../workflows/short-job.js'

export function interceptors(): WorkflowInterceptors {
  pluginIsHere()
  return {}
}
