import { obtainControlPlaneParts } from './control-plane-parts.js'
import { obtainKubectl } from './kubectl.js'
import { clusterObstacle, realNodeObstacle } from './obstacles.js'
import { obtainRealNodeParts } from './real-node-parts.js'
import obtainTemporal from './temporal-setup.js'

/**
 * A vitest `globalSetup`: obtains the programs of a control plane and of a real node, kubectl and Temporal before the first test. On a
 * fresh machine they are built, in minutes, longer than a hook may take. What is missing and cannot be had is said, and its tests are
 * skipped.
 */
export default async function setup(): Promise<void> {
  await obtainTemporal()
  const obstacle = await clusterObstacle()
  if (obstacle) {
    console.error(`Kubernetes: all tests are skipped, because ${obstacle}`)
    return
  }
  const { description } = await obtainControlPlaneParts()
  console.error(`Kubernetes: ${description}`)
  const ofNode = await realNodeObstacle()
  if (ofNode) console.error(`Kubernetes: tests of a real node are skipped, because ${ofNode}`)
  else await obtainRealNodeParts()
  await obtainKubectl()
}
