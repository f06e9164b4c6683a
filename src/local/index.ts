export { createLocalBackend, type LocalBackend, type LocalBackendOptions } from './backend.js'
