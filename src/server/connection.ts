import type { ConnectionOptions } from '@temporalio/client'

export const DEFAULT_ADDRESS = '127.0.0.1:7233'
export const DEFAULT_NAMESPACE = 'default'

export interface ServerAddress {
  /** host:port */
  address: string
  namespace: string
}

/** The server that `TEMPORAL_ADDRESS` and `TEMPORAL_NAMESPACE` name, else the dev server's defaults. */
export function serverFromEnvironment(env: NodeJS.ProcessEnv = process.env): ServerAddress {
  return {
    address: env.TEMPORAL_ADDRESS || DEFAULT_ADDRESS,
    namespace: env.TEMPORAL_NAMESPACE || DEFAULT_NAMESPACE,
  }
}

/** Options for `Connection.connect` and, being a subset of them, for `NativeConnection.connect`. */
export function connectionOptions(
  server: Pick<ServerAddress, 'address'> = serverFromEnvironment(),
): Pick<ConnectionOptions, 'address'> & { address: string } {
  return { address: server.address }
}
