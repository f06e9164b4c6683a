/** Which server, and the task queue of this project's own worker. */
import { serverFromEnvironment } from 'firepool/client'

/** TEMPORAL_ADDRESS and the like, or a profile of temporal.toml: as Firepool's own commands take it. */
export const { namespace: NAMESPACE, ...SERVER } = serverFromEnvironment()
export const TASK_QUEUE = 'typescript-callers'
