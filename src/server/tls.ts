import { createPrivateKey, X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { ConnectionOptions } from '@temporalio/client'
import type { ClientConfigTLS, ConfigDataSource } from '@temporalio/envconfig'
import { ConnectionSettingsError } from './settings-error.js'

/** `true` is TLS with the system's CAs and without a certificate of ours. */
export type TlsSettings = Exclude<ConnectionOptions['tls'], null | undefined>

/**
 * TLS as a profile has it. The files are read and looked at here: whoever connects later says of a wrong one only that the
 * handshake failed, or uses no certificate at all.
 * @returns undefined when nothing is said about TLS
 * @throws ConnectionSettingsError that names the file and the setting, and nothing of its content
 */
export function tlsOf(given: ClientConfigTLS | undefined, withApiKey: boolean): TlsSettings | undefined {
  if (given === undefined) return withApiKey ? true : undefined
  if (given.disabled === true) return false
  const { serverName } = given
  const ca = certificate('server_ca_cert', given.serverCACert)
  const crt = certificate('client_cert', given.clientCert)
  const key = given.clientKey && contentOf('client_key', given.clientKey)
  if ((crt === undefined) !== (key === undefined)) {
    const [there, missing] = crt ? ['client_cert', 'client_key'] : ['client_key', 'client_cert']
    throw new ConnectionSettingsError(
      `${there} is set and ${missing} is not`,
      `give both (${variables('client_cert')} and ${variables('client_key')}), or none`,
    )
  }
  return {
    ...(serverName === undefined ? {} : { serverNameOverride: serverName }),
    ...(ca ? { serverRootCACertificate: ca } : {}),
    ...(crt && key ? { clientCertPair: pair(crt, key, given.clientKey) } : {}),
  }
}

type Setting = 'server_ca_cert' | 'client_cert' | 'client_key'

function contentOf(setting: Setting, source: ConfigDataSource): Uint8Array {
  if (!('path' in source)) return Buffer.from(source.data)
  if (typeof source.path !== 'string')
    throw new ConnectionSettingsError(`${setting}_path is no text`, `write ${setting}_path = "..."`)
  try {
    return readFileSync(source.path)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    throw new ConnectionSettingsError(
      code === 'ENOENT'
        ? `the file of ${setting}_path is not there: ${source.path}`
        : `the file of ${setting}_path cannot be read (${code}): ${source.path}`,
      `correct ${setting}_path in the profile, or ${variables(setting)}`,
    )
  }
}

function certificate(setting: Setting, source: ConfigDataSource | undefined): Uint8Array | undefined {
  if (source === undefined) return undefined
  const content = contentOf(setting, source)
  try {
    new X509Certificate(content)
    return content
  } catch {
    throw new ConnectionSettingsError(
      `${setting} is no certificate${placeOf(source)}`,
      'give a certificate in PEM, beginning with -----BEGIN CERTIFICATE-----',
    )
  }
}

function pair(crt: Uint8Array, key: Uint8Array, source: ConfigDataSource | undefined) {
  let matches: boolean
  try {
    matches = new X509Certificate(crt).checkPrivateKey(createPrivateKey(Buffer.from(key)))
  } catch {
    throw new ConnectionSettingsError(
      `client_key is no private key that can be read without a passphrase${placeOf(source)}`,
      'give an unencrypted key in PEM, beginning with -----BEGIN PRIVATE KEY----- or the like',
    )
  }
  if (!matches)
    throw new ConnectionSettingsError(
      `client_key does not belong to client_cert${placeOf(source)}`,
      'give the key with which the certificate was requested',
    )
  return { crt, key }
}

function placeOf(source: ConfigDataSource | undefined): string {
  return source && 'path' in source ? `: ${source.path}` : ''
}

function variables(setting: Setting): string {
  const name = `TEMPORAL_TLS_${setting.toUpperCase()}`
  return `${name}_PATH or ${name}_DATA`
}
