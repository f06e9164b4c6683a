import { readFile } from 'node:fs/promises'
import type { KubeCredentials } from './kube-api.js'

/** What a kubeconfig of our control plane says: one cluster, one user, all of it in the file itself. */
export async function readKubeconfig(path: string): Promise<KubeCredentials> {
  const config = JSON.parse(await readFile(path, 'utf8'))
  const decode = (text: string) => Buffer.from(text, 'base64').toString('utf8')
  const { cluster } = config.clusters[0]
  const { user } = config.users[0]
  const cert = user['client-certificate-data']
  const key = user['client-key-data']
  return {
    url: cluster.server,
    ca: decode(cluster['certificate-authority-data']),
    ...(cert && key ? { cert: decode(cert), key: decode(key) } : {}),
    ...(user.token ? { token: user.token } : {}),
  }
}
