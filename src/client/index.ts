/** `firepool/client`: what a TypeScript service imports to manage pools and run single jobs. */
export type {
  ErrorCode,
  JobFile,
  JobResult,
  JobSpec,
  Origin,
  Page,
  PageRequest,
  PodRow,
  PoolSpec,
  PoolStatus,
  Problem,
  Profile,
  QueueRow,
  Resize,
  RunJobInput,
} from '../contract/index.js'
export { FirepoolError } from '../contract/index.js'
export { type ConnectionSettings, type ServerSettings, serverFromEnvironment } from '../server/connection.js'
export { ConnectionSettingsError } from '../server/settings-error.js'
export {
  type Applied,
  createFirepoolClient,
  type DeleteOptions,
  type FirepoolClient,
  type FirepoolClientOptions,
  noWorker,
  type PoolEntry,
  type PoolSpecInput,
  type RunJobOptions,
} from './client.js'
export type { Session, SessionOptions, SessionRunOptions } from './session.js'
export { FirepoolUnavailableError, type UnavailableReason } from './unavailable.js'
export type { Waiting } from './waiting.js'
