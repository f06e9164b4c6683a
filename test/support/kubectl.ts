import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { parseAllDocuments } from 'yaml'
import { goBuild } from '../../src/server/go-install.js'
import { built } from './built.js'
import { type KubeApi, KubeError, type KubeObject } from './kube-api.js'

const run = promisify(execFile)

/** The module of kubectl, of the release that the control plane is of. */
const MODULE = fileURLToPath(new URL('../control-plane/kubectl', import.meta.url))

/** deploy/kubernetes of this repository. */
export const DEPLOY = fileURLToPath(new URL('../../deploy/kubernetes', import.meta.url))

/** The path of kubectl in Firepool's cache folder, where it is built once: a minute when the control plane was built before. */
export async function obtainKubectl(): Promise<string> {
  const digest = createHash('sha256').update(process.arch)
  for (const file of ['go.mod', 'go.sum', 'main.go']) digest.update(await readFile(join(MODULE, file)))
  return built(`kubectl-${digest.digest('hex').slice(0, 12)}`, 'with go build', async (folder) => {
    await goBuild(['.'], { env: process.env, folder, module: MODULE, ldflags: '-s -w' })
    return join(folder, 'kubectl')
  })
}

/** The objects of a folder with a kustomization.yaml, in the order in which `kubectl apply -k` applies them. */
export async function render(folder: string): Promise<KubeObject[]> {
  const { stdout } = await run(await obtainKubectl(), ['kustomize', folder])
  return objectsOf(stdout)
}

/** The objects of a YAML text. @throws YAMLParseError */
export function objectsOf(text: string): KubeObject[] {
  return parseAllDocuments(text, { merge: true }).flatMap((document) => {
    const [error] = document.errors
    if (error) throw error
    return document.toJS() ?? []
  })
}

/** Kinds of our objects that are of the whole cluster, and where each kind's collection is. */
const CLUSTER_WIDE = ['Namespace', 'ClusterRole', 'ClusterRoleBinding', 'PriorityClass', 'CSIDriver']
const PLURALS: Record<string, string> = {
  NetworkPolicy: 'networkpolicies',
  PriorityClass: 'priorityclasses',
}

/** The path of the collection that an object belongs to. */
export function collectionOf({ apiVersion, kind, metadata }: KubeObject): string {
  const api = apiVersion === 'v1' ? '/api/v1' : `/apis/${apiVersion}`
  const plural = PLURALS[kind] ?? `${kind.toLowerCase()}s`
  if (CLUSTER_WIDE.includes(kind)) return `${api}/${plural}`
  if (metadata.namespace === undefined) throw new Error(`${kind} ${metadata.name} names no namespace`)
  return `${api}/namespaces/${metadata.namespace}/${plural}`
}

/**
 * Creates an object, or asks the API server whether it would: admission and validation are all done, unknown and doubled fields refused.
 * @param dryRun an object that is there already is as good
 * @throws KubeError
 */
export async function create(api: KubeApi, object: KubeObject, dryRun = false): Promise<void> {
  const query = `fieldValidation=Strict${dryRun ? '&dryRun=All' : ''}`
  try {
    await api.post(`${collectionOf(object)}?${query}`, object)
  } catch (error) {
    if (!(dryRun && error instanceof KubeError && error.reason === 'AlreadyExists')) throw error
  }
}
