export { createKubernetesBackend, type KubernetesBackend, type KubernetesBackendOptions } from './backend.js'
export { KubernetesSettingsError } from './settings-error.js'
