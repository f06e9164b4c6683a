/** Which server, and the task queue of this project's own worker. */

export const ADDRESS = process.env.TEMPORAL_ADDRESS ?? 'localhost:7233'
export const NAMESPACE = process.env.TEMPORAL_NAMESPACE ?? 'default'
export const TASK_QUEUE = 'typescript-callers'
