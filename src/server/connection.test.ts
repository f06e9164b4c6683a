import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createAuthority } from '../../test/support/certificates.js'
import { serverFromEnvironment, serverOnPurpose, settingsGiven } from './connection.js'
import { ConnectionSettingsError } from './settings-error.js'

const SECRET = 'sk-do-not-print-me'

let folder: string
let home: NodeJS.ProcessEnv
const ca = createAuthority('ca')
const client = ca.issue('client')

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'firepool-settings-'))
  mkdirSync(join(folder, 'temporalio'))
  home = { HOME: folder, XDG_CONFIG_HOME: folder }
  put('ca.pem', ca.cert)
  put('client.pem', client.cert)
  put('client.key', client.key)
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

function put(name: string, text: string): string {
  const path = join(folder, name)
  writeFileSync(path, text)
  return path
}

/** The environment with a profile file of its own. */
function withFile(text: string, more: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  return { ...home, TEMPORAL_CONFIG_FILE: put('profiles.toml', text), ...more }
}

function refusal(env: NodeJS.ProcessEnv): string {
  try {
    settingsGiven(env)
  } catch (error) {
    expect(error).toBeInstanceOf(ConnectionSettingsError)
    const { message, stack } = error as Error
    expect(`${message}${stack}`).not.toContain(SECRET)
    return message
  }
  throw new Error('it was not refused')
}

describe('where settings come from', () => {
  test('nothing: the defaults of a dev server', () => {
    expect(serverFromEnvironment(home)).toEqual({ address: '127.0.0.1:7233', namespace: 'default' })
    expect(settingsGiven(home)).toMatchObject({ connection: {} })
    expect(serverOnPurpose(home)).toBeUndefined()
  })

  test('variables, which go before the profile one by one', () => {
    const env = withFile(
      '[profile.prod]\naddress = "prod:1"\nnamespace = "ours"\napi_key = "of-the-file"\n',
      {
        TEMPORAL_PROFILE: 'prod',
      },
    )
    expect(serverFromEnvironment(env)).toEqual({
      address: 'prod:1',
      namespace: 'ours',
      apiKey: 'of-the-file',
      tls: true,
    })
    expect(settingsGiven(env).because).toBe(`of profile 'prod' in ${env.TEMPORAL_CONFIG_FILE}`)
    const more = { ...env, TEMPORAL_ADDRESS: 'other:2', TEMPORAL_API_KEY: SECRET, TEMPORAL_TLS: 'false' }
    expect(serverFromEnvironment(more)).toEqual({
      address: 'other:2',
      namespace: 'ours',
      apiKey: SECRET,
      tls: false,
    })
    expect(settingsGiven(more).because).toBe('named by TEMPORAL_ADDRESS')
  })

  test('an empty variable says nothing; no TLS comes of it', () => {
    const env = {
      ...home,
      TEMPORAL_ADDRESS: '',
      TEMPORAL_API_KEY: '',
      TEMPORAL_TLS: '',
      TEMPORAL_PROFILE: '',
    }
    expect(serverFromEnvironment(env)).toEqual({ address: '127.0.0.1:7233', namespace: 'default' })
    expect(serverOnPurpose(env)).toBeUndefined()
  })

  test('the usual profile file: for every program, but not on purpose', () => {
    const usual = put('temporalio/temporal.toml', '[profile.default]\naddress = "company:7233"\n')
    expect(settingsGiven(home)).toMatchObject({
      address: 'company:7233',
      because: `of profile 'default' in ${usual}`,
    })
    expect(serverOnPurpose(home)).toBeUndefined()
    expect(serverOnPurpose({ ...home, TEMPORAL_PROFILE: 'default' })).toMatchObject({
      address: 'company:7233',
    })
    rmSync(usual)
  })

  test('headers of every call', () => {
    const env = withFile('[profile.default.grpc_meta]\nteam = "a"\nother = "b"\n', {
      TEMPORAL_GRPC_META_OTHER: '',
      TEMPORAL_GRPC_META_MORE: 'c',
    })
    expect(settingsGiven(env).connection).toEqual({ metadata: { team: 'a', more: 'c' } })
  })

  test('certificates, as files and as text', () => {
    const files = withFile(
      `[profile.default.tls]\nserver_name = "temporal"\nserver_ca_cert_path = "${folder}/ca.pem"\n` +
        `client_cert_path = "${folder}/client.pem"\nclient_key_path = "${folder}/client.key"\n`,
    )
    const wanted = {
      serverNameOverride: 'temporal',
      serverRootCACertificate: Buffer.from(ca.cert),
      clientCertPair: { crt: Buffer.from(client.cert), key: Buffer.from(client.key) },
    }
    expect(settingsGiven(files).connection).toEqual({ tls: wanted })
    const texts = {
      ...home,
      TEMPORAL_TLS_SERVER_NAME: 'temporal',
      TEMPORAL_TLS_SERVER_CA_CERT_DATA: ca.cert,
      TEMPORAL_TLS_CLIENT_CERT_DATA: client.cert,
      TEMPORAL_TLS_CLIENT_KEY_DATA: client.key,
    }
    expect(settingsGiven(texts).connection).toEqual({ tls: wanted })
  })

  test.each(['', '# nothing yet\n', '[other]\nx = 1\n'])(
    'a file without profiles (%j) is an empty one',
    (text) => {
      expect(settingsGiven(withFile(text, { TEMPORAL_ADDRESS: 'a:1' }))).toMatchObject({ address: 'a:1' })
    },
  )
})

describe('what is wrong is said, with the place and without a secret', () => {
  test.each<[string, string, RegExp]>([
    [
      'no TOML',
      `[profile.default]\napi_key = "${SECRET}\n`,
      /profiles\.toml is no TOML: line 2, column \d+: /,
    ],
    ['a line without =', `[profile.default]\napi_key "${SECRET}"\n`, /line 2, column/],
    ['a number for an address', '[profile.default]\naddress = 7233\n', /address of the profile is no text/],
    [
      'a table for a key',
      `[profile.default.api_key]\nx = "${SECRET}"\n`,
      /api_key of the profile is no text/,
    ],
    [
      'a path and a text',
      `[profile.default.tls]\nclient_key_path = "x"\nclient_key_data = "${SECRET}"\n`,
      /Cannot specify both client_key_path and client_key_data/,
    ],
  ])('%s', (_, text, pattern) => {
    expect(refusal(withFile(text))).toMatch(pattern)
  })

  test.each(['[profile.other]\naddress = "x:1"\n', ''])('a profile that is not there, in %j', (text) => {
    expect(refusal(withFile(text, { TEMPORAL_PROFILE: 'prod' }))).toMatch(
      /TEMPORAL_PROFILE is 'prod', and .*profiles\.toml has no such profile; add \[profile\.prod\]/,
    )
  })

  test('a file that is not there, or cannot be read', () => {
    expect(refusal({ ...home, TEMPORAL_CONFIG_FILE: '/nowhere/t.toml' })).toMatch(
      /TEMPORAL_CONFIG_FILE names \/nowhere\/t\.toml, which is not there/,
    )
    expect(refusal({ ...home, TEMPORAL_CONFIG_FILE: folder })).toMatch(/cannot be read \(EISDIR\)/)
  })

  test('a switch that is neither', () => {
    expect(refusal({ ...home, TEMPORAL_TLS: 'yes' })).toMatch(
      /TEMPORAL_TLS is 'yes'; set it to true or false/,
    )
    expect(refusal({ ...home, TEMPORAL_TLS_DISABLE_HOST_VERIFICATION: '1' })).toMatch(
      /always checks the server/,
    )
  })

  const garbage = `-----BEGIN PRIVATE KEY-----\n${SECRET}\n-----END PRIVATE KEY-----\n`
  test.each<[string, () => NodeJS.ProcessEnv, RegExp]>([
    [
      'a certificate that is not there',
      () => ({ TEMPORAL_TLS_SERVER_CA_CERT_PATH: '/nowhere/ca.pem' }),
      /the file of server_ca_cert_path is not there: \/nowhere\/ca\.pem; correct .*TEMPORAL_TLS_SERVER_CA_CERT_PATH/,
    ],
    [
      'no certificate',
      () => ({ TEMPORAL_TLS_SERVER_CA_CERT_PATH: put('garbage.pem', garbage) }),
      /server_ca_cert is no certificate: .*garbage\.pem/,
    ],
    [
      'a certificate without its key',
      () => ({ TEMPORAL_TLS_CLIENT_CERT_DATA: client.cert }),
      /client_cert is set and client_key is not/,
    ],
    [
      'a key without its certificate',
      () => ({ TEMPORAL_TLS_CLIENT_KEY_DATA: client.key }),
      /client_key is set and client_cert is not/,
    ],
    [
      'no key',
      () => ({ TEMPORAL_TLS_CLIENT_CERT_DATA: client.cert, TEMPORAL_TLS_CLIENT_KEY_DATA: garbage }),
      /client_key is no private key/,
    ],
    [
      'the key of another',
      () => ({ TEMPORAL_TLS_CLIENT_CERT_DATA: client.cert, TEMPORAL_TLS_CLIENT_KEY_DATA: ca.issue('x').key }),
      /client_key does not belong to client_cert/,
    ],
  ])('%s', (_, env, pattern) => {
    expect(refusal({ ...home, ...env() })).toMatch(pattern)
  })
})
