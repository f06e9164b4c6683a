/** The workflows of Firepool's own worker, under their published names. */
export { lease as 'firepool.lease' } from './lease.js'
export { pool as 'firepool.pool' } from './pool.js'
export { runJob as 'firepool.runJob' } from './run-job.js'
export { session as 'firepool.session' } from './session.js'
