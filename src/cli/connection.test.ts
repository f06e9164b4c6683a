import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { chooseServer } from './connection.js'
import { reportOf } from './failure.js'
import { removeDevFile, writeDevFile } from './state-folder.js'

let dir: string
/** Nothing of the user's own: with the folder named, and without. */
let env: NodeJS.ProcessEnv
let user: NodeJS.ProcessEnv

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'firepool-choose-'))
  mkdirSync(join(dir, 'temporalio'))
  user = { HOME: dir, XDG_CONFIG_HOME: dir }
  env = { ...user, FIREPOOL_DIR: dir }
})
afterEach(() => rmSync(dir, { recursive: true, force: true }))

const PROFILE = `[profile.default]
address = "profile:1"
namespace = "of-profile"
api_key = "key"
`

/** dev.json of this process, and a usual profile file, during an action. */
function having(what: { dev?: boolean; profile?: string }, action: () => void): void {
  const file = join(dir, 'temporalio', 'temporal.toml')
  try {
    if (what.dev) writeDevFile(dir, { address: 'dev:1', namespace: 'of-dev', uiUrl: null })
    if (what.profile) writeFileSync(file, what.profile)
    action()
  } finally {
    removeDevFile(dir)
    rmSync(file, { force: true })
  }
}

test('flags, then the environment, then the profile, then a running dev, then the default', () => {
  const variables = { ...env, TEMPORAL_ADDRESS: 'env:1', TEMPORAL_NAMESPACE: 'of-env' }
  const flags = { address: 'flag:1', namespace: 'of-flag' }
  having({ dev: true, profile: PROFILE }, () => {
    expect(chooseServer(flags, variables)).toMatchObject(flags)
    expect(chooseServer({}, variables)).toMatchObject({ address: 'env:1', namespace: 'of-env' })
    expect(chooseServer({}, env)).toMatchObject({ address: 'profile:1', namespace: 'of-profile' })
  })
  having({ dev: true }, () =>
    expect(chooseServer({}, env)).toMatchObject({ address: 'dev:1', namespace: 'of-dev' }),
  )
  having({}, () =>
    expect(chooseServer({}, env)).toMatchObject({ address: '127.0.0.1:7233', namespace: 'default' }),
  )
})

test('each setting by itself: a flag for the namespace leaves the server of the profile, with its key', () => {
  having({ profile: PROFILE }, () => {
    expect(chooseServer({ namespace: 'mine' }, env)).toMatchObject({
      address: 'profile:1',
      namespace: 'mine',
      connection: { apiKey: 'key', tls: true },
    })
    expect(chooseServer({ address: 'flag:1' }, env)).toMatchObject({ connection: { apiKey: 'key' } })
  })
})

test('a running dev gets no secret: it is spoken to in the clear', () => {
  having({ dev: true }, () => {
    const { address, connection } = chooseServer({}, { ...env, TEMPORAL_API_KEY: 'key' })
    expect({ address, connection }).toEqual({ address: 'dev:1', connection: {} })
  })
})

const facts = { address: '127.0.0.1:5', namespace: 'n', uiUrl: null }

/** What a dev leaves behind that was killed: its pid belongs to nobody, or to another process. */
function killedDev(): void {
  const start = 'another-boot-1'
  writeFileSync(join(dir, 'dev.json'), JSON.stringify({ v: 1, ...facts, dir, pid: process.pid, start }))
}

test('a dev that runs on the folder is found, however the folder is named', () => {
  writeDevFile(dir, facts)
  for (const chosen of [chooseServer({ dir }, user), chooseServer({}, { ...user, FIREPOOL_DIR: dir })])
    expect(chosen).toMatchObject({ address: '127.0.0.1:5', namespace: 'n' })
})

test('a folder that was named and whose dev was killed is no other server', () => {
  killedDev()
  for (const choose of [
    () => chooseServer({ dir }, user),
    () => chooseServer({}, { ...user, FIREPOOL_DIR: dir }),
  ]) {
    try {
      choose()
      expect.unreachable()
    } catch (error) {
      expect(reportOf(error)).toMatchObject({ code: 'NoServer', exitCode: 69 })
      expect(reportOf(error).remedy).toContain(`firepool dev --dir ${dir}`)
    }
  }
})

test('a server that was named, a dev that ended in order, and the usual folder go on as before', () => {
  killedDev()
  expect(chooseServer({ dir, address: 'a:1' }, user).address).toBe('a:1')
  expect(chooseServer({ dir }, { ...user, TEMPORAL_ADDRESS: 'b:2' }).address).toBe('b:2')
  const usual = chooseServer({}, { ...user, XDG_STATE_HOME: dir })
  expect(usual.because).toContain('no firepool dev runs on')
  removeDevFile(dir)
  expect(chooseServer({ dir }, user).address).toBe('127.0.0.1:7233')
})
