import { obtainControlPlaneParts } from './control-plane-parts.js'

/**
 * A vitest `globalSetup`: obtains the programs of a control plane before the first test. On a fresh machine they are built, in
 * minutes, longer than a hook may take.
 */
export default async function setup(): Promise<void> {
  const { description } = await obtainControlPlaneParts()
  console.error(`Kubernetes: ${description}`)
}
