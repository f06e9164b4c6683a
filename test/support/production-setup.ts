import type { TestProject } from 'vitest/node'
import { obtainCompose, obtainProductionParts, type ProductionParts } from './production-parts.js'
import { startProductionServer } from './production-server.js'

declare module 'vitest' {
  interface ProvidedContext {
    /** the server that all tests of the project share; each file takes a namespace of its own */
    production: { address: string; parts: ProductionParts; compose: string }
  }
}

/** A vitest `globalSetup`: one server for all tests. On a fresh machine it is built before, in minutes. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const compose = await obtainCompose()
  const parts = await obtainProductionParts()
  const server = await startProductionServer(parts)
  project.provide('production', { address: server.address, parts, compose })
  return server.stop
}
