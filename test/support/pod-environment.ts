import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { KubeApi, KubeObject } from './kube-api.js'

/** What a pod's spec says that its containers find: environment and files, without root and so without mounts. */

/** The kubelet cannot give a container what its spec asks for; the reason is the kubelet's own word. */
export class ContainerConfigError extends Error {
  readonly reason = 'CreateContainerConfigError'
}

/** Where a path of the container is on this machine: the longest that it begins with. */
export type Paths = readonly (readonly [inside: string, outside: string])[]

/** Makes the folders and files of a pod's volumes. @returns where each mount of each container is on this machine */
export async function makeVolumes(
  api: KubeApi,
  pod: KubeObject,
  folder: string,
): Promise<Map<string, Paths>> {
  const outside = new Map<string, string>()
  for (const volume of pod.spec.volumes ?? []) {
    const place = join(folder, 'volumes', volume.name)
    mkdirSync(place, { recursive: true })
    for (const [path, text] of await filesOf(api, pod, volume)) {
      const file = join(place, path)
      mkdirSync(dirname(file), { recursive: true })
      writeFileSync(file, text)
    }
    outside.set(volume.name, place)
  }
  return new Map(
    pod.spec.containers.map((container: KubeObject) => [
      container.name,
      (container.volumeMounts ?? []).map(({ name, mountPath, subPath = '' }: KubeObject) => {
        const place = outside.get(name)
        if (place === undefined) throw new ContainerConfigError(`there is no volume ${name}`)
        return [mountPath, join(place, subPath)] as const
      }),
    ]),
  )
}

async function filesOf(
  api: KubeApi,
  pod: KubeObject,
  volume: KubeObject,
): Promise<[path: string, content: string | Buffer][]> {
  // What a driver would mount is not played: an empty folder.
  if (volume.emptyDir || volume.csi) return []
  const { namespace } = pod.metadata
  if (volume.configMap) {
    const { data = {} } = await read(api, namespace, 'configmaps', volume.configMap.name)
    return Object.entries<string>(data)
  }
  if (volume.secret) {
    const { data = {} } = await read(api, namespace, 'secrets', volume.secret.secretName)
    return Object.entries<string>(data).map(([path, text]) => [path, Buffer.from(text, 'base64')])
  }
  if (volume.downwardAPI) {
    return volume.downwardAPI.items.map(({ path, fieldRef }: KubeObject) => [
      path,
      fieldOf(pod, fieldRef.fieldPath, ''),
    ])
  }
  // The token of an account, which the API server adds to each pod that does not refuse it.
  if (volume.projected) return []
  throw new ContainerConfigError(`volume ${volume.name} is of a kind that a process cannot have`)
}

async function read(
  api: KubeApi,
  namespace: string,
  kind: string,
  name: string,
  optional = false,
): Promise<KubeObject> {
  try {
    return await api.get(`/api/v1/namespaces/${namespace}/${kind}/${name}`)
  } catch (error) {
    if (optional && (error as { code?: unknown }).code === 404) return {}
    throw new ContainerConfigError((error as Error).message)
  }
}

/** The environment of a container: as its spec says, in its order, `$(NAME)` replaced by what came before. */
export async function containerEnvironment(
  api: KubeApi,
  pod: KubeObject,
  container: KubeObject,
  podIp: string,
): Promise<Record<string, string>> {
  const { namespace } = pod.metadata
  const env: Record<string, string> = {}
  for (const { prefix = '', configMapRef, secretRef } of container.envFrom ?? []) {
    const { name, optional = false } = configMapRef ?? secretRef
    const { data = {} } = await read(api, namespace, configMapRef ? 'configmaps' : 'secrets', name, optional)
    for (const [key, value] of Object.entries<string>(data)) {
      env[prefix + key] = configMapRef ? value : Buffer.from(value, 'base64').toString('utf8')
    }
  }
  for (const { name, value, valueFrom } of container.env ?? []) {
    env[name] = valueFrom ? await sourceValue(api, pod, valueFrom, podIp) : expand(value ?? '', env)
  }
  return env
}

async function sourceValue(api: KubeApi, pod: KubeObject, from: KubeObject, podIp: string): Promise<string> {
  const { namespace } = pod.metadata
  if (from.fieldRef) return fieldOf(pod, from.fieldRef.fieldPath, podIp)
  if (from.configMapKeyRef) {
    const { name, key } = from.configMapKeyRef
    return keyOf((await read(api, namespace, 'configmaps', name)).data, name, key)
  }
  if (from.secretKeyRef) {
    const { name, key } = from.secretKeyRef
    const text = keyOf((await read(api, namespace, 'secrets', name)).data, name, key)
    return Buffer.from(text, 'base64').toString('utf8')
  }
  throw new ContainerConfigError(`a variable has a source that is not known: ${Object.keys(from)}`)
}

function keyOf(data: Record<string, string> | undefined, name: string, key: string): string {
  const value = data?.[key]
  if (value === undefined) throw new ContainerConfigError(`couldn't find key ${key} in ${name}`)
  return value
}

/** The downward API: a field of the pod as a text. */
function fieldOf(pod: KubeObject, path: string, podIp: string): string {
  const keyed = /^metadata\.(annotations|labels)\['([^']+)'\]$/.exec(path)
  if (keyed) return pod.metadata[keyed[1]!]?.[keyed[2]!] ?? ''
  const fields: Record<string, string> = {
    'metadata.name': pod.metadata.name,
    'metadata.namespace': pod.metadata.namespace,
    'metadata.uid': pod.metadata.uid,
    'spec.nodeName': pod.spec.nodeName,
    'spec.serviceAccountName': pod.spec.serviceAccountName,
    'status.hostIP': '127.0.0.1',
    'status.podIP': podIp,
    'status.podIPs': podIp,
  }
  const value = fields[path]
  if (value === undefined) throw new ContainerConfigError(`a pod has no field ${path}`)
  return value
}

/** `$(NAME)` is replaced by the variable if there is one; `$$` is a dollar. */
export function expand(text: string, env: Readonly<Record<string, string>>): string {
  return text.replace(/\$\$|\$\(([^)]+)\)/g, (found, name?: string) =>
    name === undefined ? '$' : (env[name] ?? found),
  )
}

/** A text as it is, or the path on this machine that it names from inside of the container. */
export function outsideOf(text: string, paths: Paths): string {
  const found = paths
    .filter(([inside]) => text === inside || text.startsWith(inside.endsWith('/') ? inside : `${inside}/`))
    .sort(([a], [b]) => b.length - a.length)[0]
  return found === undefined ? text : join(found[1], text.slice(found[0].length))
}
