import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { type ClientConfigProfile, loadClientConfigProfile } from '@temporalio/envconfig'
import { ConnectionSettingsError } from './settings-error.js'
import { type TlsSettings, tlsOf } from './tls.js'

export const DEFAULT_ADDRESS = '127.0.0.1:7233'
export const DEFAULT_NAMESPACE = 'default'

/** How a server is spoken to. `Connection.connect` and `NativeConnection.connect` take it as it is, with an address. */
export interface ConnectionSettings {
  tls?: TlsSettings
  apiKey?: string
  /** headers of every call */
  metadata?: Record<string, string>
}

export interface ServerSettings extends ConnectionSettings {
  /** host:port */
  address: string
  namespace: string
}

type Environment = Record<string, string>

/** What the environment and the profile say, and no more. */
export interface GivenSettings {
  address?: string
  namespace?: string
  connection: ConnectionSettings
  /** for messages: who names the address */
  because: string
}

/**
 * The server of the standard environment and profile file (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS*,
 * TEMPORAL_PROFILE, TEMPORAL_CONFIG_FILE; see docs/cli.md), with the dev server's defaults.
 * @throws ConnectionSettingsError
 */
export function serverFromEnvironment(env: NodeJS.ProcessEnv = process.env): ServerSettings {
  const { address = DEFAULT_ADDRESS, namespace = DEFAULT_NAMESPACE, connection } = settingsGiven(env)
  return { address, namespace, ...connection }
}

/**
 * The server that this process was told to use. The profile that every program of this user takes does not count: who asks
 * for a server of his own does not want the company's.
 * @throws ConnectionSettingsError
 */
export function serverOnPurpose(
  env: NodeJS.ProcessEnv = process.env,
): (GivenSettings & { address: string }) | undefined {
  if (!(env.TEMPORAL_ADDRESS || env.TEMPORAL_PROFILE || env.TEMPORAL_CONFIG_FILE)) return undefined
  const { address, ...given } = settingsGiven(env)
  return address === undefined ? undefined : { address, ...given }
}

/** See serverFromEnvironment. @throws ConnectionSettingsError */
export function settingsGiven(env: NodeJS.ProcessEnv = process.env): GivenSettings {
  const meant = withoutEmpty(env)
  checkSwitches(meant)
  const profile = loadProfile(meant)
  const { address, namespace, apiKey, grpcMeta } = profile
  for (const [name, value] of Object.entries({ address, namespace, api_key: apiKey })) checkText(name, value)
  const tls = tlsOf(profile.tls, apiKey !== undefined)
  return {
    ...(address === undefined ? {} : { address }),
    ...(namespace === undefined ? {} : { namespace }),
    connection: {
      ...(tls === undefined ? {} : { tls }),
      ...(apiKey === undefined ? {} : { apiKey }),
      ...(grpcMeta === undefined ? {} : { metadata: grpcMeta }),
    },
    because: meant.TEMPORAL_ADDRESS
      ? 'named by TEMPORAL_ADDRESS'
      : `of profile '${meant.TEMPORAL_PROFILE ?? 'default'}' in ${profileFile(meant)}`,
  }
}

/** An empty variable says nothing, as in a compose file that passes on what is not set. An empty header is left out on purpose. */
function withoutEmpty(env: NodeJS.ProcessEnv): Environment {
  const keep = (entry: [string, string | undefined]): entry is [string, string] =>
    entry[1] !== undefined && (entry[1] !== '' || !/^TEMPORAL_(?!GRPC_META_)/.test(entry[0]))
  return Object.fromEntries(Object.entries(env).filter(keep))
}

/** What the SDK would take for no: TEMPORAL_TLS=yes would send an API key in the clear. */
function checkSwitches(env: Environment): void {
  const { TEMPORAL_TLS: tls, TEMPORAL_TLS_DISABLE_HOST_VERIFICATION: unverified } = env
  if (tls !== undefined && !['1', '0', 'true', 'false'].includes(tls))
    throw new ConnectionSettingsError(`TEMPORAL_TLS is '${tls}'`, 'set it to true or false, or leave it out')
  if (unverified === '1' || unverified === 'true')
    throw new ConnectionSettingsError(
      'TEMPORAL_TLS_DISABLE_HOST_VERIFICATION is set, and the TypeScript SDK always checks the server',
      "name the server's CA with TEMPORAL_TLS_SERVER_CA_CERT_PATH, and its name with TEMPORAL_TLS_SERVER_NAME",
    )
}

function loadProfile(env: Environment): ClientConfigProfile {
  const { TEMPORAL_CONFIG_FILE: named, TEMPORAL_PROFILE: profile } = env
  // The SDK takes a file that is not there for an empty one; who names one means it.
  if (named !== undefined && !existsSync(named))
    throw new ConnectionSettingsError(
      `TEMPORAL_CONFIG_FILE names ${named}, which is not there`,
      'correct the path, or leave the variable out',
    )
  try {
    return loadClientConfigProfile({ overrideEnvVars: env })
  } catch (error) {
    const file = profileFile(env)
    if (isWithoutProfiles(error)) {
      if (profile === undefined) return loadClientConfigProfile({ overrideEnvVars: env, disableFile: true })
      throw noProfile(profile, file)
    }
    throw profileError(error as Error, profile, file)
  }
}

/** How the SDK fails at a file that has no table `profile` at all, such as an empty one. */
function isWithoutProfiles(error: unknown): boolean {
  return error instanceof TypeError && /of undefined/.test(error.message)
}

function noProfile(profile: string, file: string): ConnectionSettingsError {
  return new ConnectionSettingsError(
    `TEMPORAL_PROFILE is '${profile}', and ${file} has no such profile`,
    `add [profile.${profile}] to it, or name another one`,
  )
}

function profileError(error: Error, profile: string | undefined, file: string): ConnectionSettingsError {
  if (profile !== undefined && /^Profile '.*' not found/.test(error.message)) return noProfile(profile, file)
  const { line, column, code } = error as { line?: number; column?: number; code?: string }
  // The parser quotes the lines around an error, and one of them may be the API key.
  const [first = ''] = error.message.split('\n')
  if (line !== undefined)
    return new ConnectionSettingsError(
      `${file} is no TOML: line ${line}, column ${column}: ${first.replace(/^Invalid TOML document: /, '')}`,
      'correct the line',
    )
  if (code !== undefined)
    return new ConnectionSettingsError(`${file} cannot be read (${code})`, 'see that this user may read it')
  return new ConnectionSettingsError(
    `the connection settings of the environment and ${file} cannot be used: ${first}`,
    'docs/cli.md has the variables, and their names in a profile',
  )
}

/** As @temporalio/envconfig looks for it. */
function profileFile(env: Environment): string {
  if (env.TEMPORAL_CONFIG_FILE !== undefined) return env.TEMPORAL_CONFIG_FILE
  const home = env.HOME || homedir()
  const folder =
    process.platform === 'darwin'
      ? join(home, 'Library', 'Application Support')
      : (env.APPDATA ?? env.XDG_CONFIG_HOME ?? join(home, '.config'))
  return join(folder, 'temporalio', 'temporal.toml')
}

/** A profile file may have a number or a table where a text belongs. */
function checkText(name: string, value: unknown): void {
  if (value === undefined || (typeof value === 'string' && value !== '')) return
  throw new ConnectionSettingsError(
    `${name} of the profile is ${value === '' ? 'empty' : 'no text'}`,
    `write ${name} = "..." in the profile file`,
  )
}
