import { expect, test } from 'vitest'
import { UntimedWorker } from './untimed-worker.js'

const CODE = 'globalThis.__webpack_module_cache__ = {}; globalThis.__TEMPORAL__ = { api: {} }'

test("workflow code has no limit of time, whatever the SDK's default says", async () => {
  const map = { version: 3, sources: [], names: [], mappings: '', file: 'x' }
  const bundle = { code: CODE, filename: 'x.js', sourceMap: map }
  const options = {
    activities: new Map(),
    isolateExecutionTimeoutMs: 5_000,
    reuseV8Context: true,
    debugMode: true,
  }
  // Of the thread itself nothing can be read: this one is made without.
  const { createWorkflowCreator } = UntimedWorker as unknown as {
    createWorkflowCreator(...args: unknown[]): Promise<object>
  }
  const creator = await createWorkflowCreator.call(UntimedWorker, bundle, options, console)
  expect(creator).toHaveProperty('isolateExecutionTimeoutMs', undefined)
})
