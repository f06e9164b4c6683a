import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { beforeAll, expect, inject, test } from 'vitest'
import { parse } from 'yaml'
import { readPoolFile } from '../../dist/cli/pool-file.js'

/**
 * docker-compose.yml, read by compose's own library and checked by the schema in it, as `docker compose config` does. What
 * the file runs is run without Docker by the other tests of this project: the same scripts, settings and versions.
 */

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const FILE = join(ROOT, 'docker-compose.yml')

interface Service {
  image: string
  build?: { context: string; dockerfile: string }
  command?: string[]
  entrypoint?: string[]
  environment?: Record<string, string>
  ports?: { host_ip?: string; published: string; target: number }[]
  depends_on?: Record<string, { condition: string }>
  healthcheck?: { test?: string[]; disable?: boolean }
  networks: Record<string, unknown>
  volumes?: { type: string; source: string; target: string; read_only?: boolean }[]
  restart: string
  cap_drop?: string[]
  user?: string
}

interface Model {
  services: Record<string, Service>
  volumes: Record<string, unknown>
  networks: Record<string, { internal?: boolean }>
}

let model: Model
let services: [string, Service][]
beforeAll(async () => {
  const { compose } = inject('production')
  const { stdout } = await promisify(execFile)(compose, ['-format', 'json', FILE], { cwd: ROOT })
  model = JSON.parse(stdout) as Model
  services = Object.entries(model.services)
})

/** Those that run on; the others do their work and end. */
const LASTING = ['postgresql', 'temporal', 'ui', 'worker']
const ONCE = ['schema', 'namespace', 'pools']

test('it has the parts of a production form, and each is told apart: what lasts and what ends', () => {
  expect(services.map(([name]) => name).sort()).toEqual([...LASTING, ...ONCE].sort())
  for (const name of LASTING) expect(model.services[name]?.restart, name).toBe('unless-stopped')
  for (const name of ONCE) expect(model.services[name]?.restart, name).toMatch(/^on-failure:\d+$/)
})

test('the check is one: an unknown key and a wrong value are refused', async () => {
  const { compose } = inject('production')
  const check = (service: string) =>
    promisify(execFile)('/bin/sh', [
      '-c',
      'printf %s "$1" | "$2" /dev/stdin',
      'sh',
      `services: { a: { image: b, ${service} } }`,
      compose,
    ])
  await expect(check('restart: always')).resolves.toBeDefined()
  await expect(check('restarts: always')).rejects.toThrow(/validating .*restarts/)
  await expect(check('restart: [always]')).rejects.toThrow(/validating .*restart/)
})

test('every image is pinned to a version, those of Temporal to the one that we test with', () => {
  for (const [name, { image }] of services) expect(image, name).toMatch(/^[a-z/-]+:\d+\.\d+/)
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string }
  expect(model.services.worker?.image).toBe(`firepool:${version}`)
  const dockerfile = readFileSync(join(ROOT, 'deploy/docker/Dockerfile'), 'utf8')
  const bases = [...dockerfile.matchAll(/^FROM (\S+)/gm)].map(([, base]) => base)
  expect(new Set(bases).size).toBe(1)
  expect(bases[0]).toMatch(/^node:\d+\.\d+\.\d+-[a-z-]+$/)
  // `built` of test/support/production-parts.ts names the folder after the version.
  const tested = /temporal-server-v([\d.]+)$/.exec(inject('production').parts.temporal)?.[1]
  expect(model.services.temporal?.image).toBe(`temporalio/server:${tested}`)
  for (const name of ['schema', 'namespace'])
    expect(model.services[name]?.image).toMatch(new RegExp(`^temporalio/admin-tools:${tested}-`))
})

test('only the loopback of the machine reaches it, on ports that may be chosen; the database is not reached at all', () => {
  const published = services.flatMap(([, { ports = [] }]) =>
    ports.map((port) => `${port.host_ip}:${port.published}`),
  )
  expect(published).toEqual(['127.0.0.1:7233', '127.0.0.1:8233'])
  // Whatever the variables say, it is the loopback.
  const raw = parse(readFileSync(FILE, 'utf8'), { merge: true }) as {
    services: Record<string, { ports?: string[] }>
  }
  const written = Object.values(raw.services).flatMap(({ ports = [] }) => ports)
  expect(written.length).toBe(2)
  for (const port of written) expect(port).toMatch(/^127\.0\.0\.1:\$\{[A-Z]+_PORT:-\d+\}:\d+$/)
  expect(model.services.postgresql?.ports).toBeUndefined()
  expect(model.networks.database?.internal).toBe(true)
  // Jobs run in the worker's container.
  for (const name of ['worker', 'pools', 'ui'])
    expect(Object.keys(model.services[name]!.networks)).toEqual(['temporal'])
})

test('what lasts has a health check, and everybody waits for what it needs', () => {
  for (const name of LASTING) expect(model.services[name]?.healthcheck?.test, name).toBeDefined()
  const needs = (name: string) =>
    Object.fromEntries(
      Object.entries(model.services[name]?.depends_on ?? {}).map(([other, { condition }]) => [
        other,
        condition,
      ]),
    )
  const healthy = 'service_healthy'
  const done = 'service_completed_successfully'
  expect(needs('schema')).toEqual({ postgresql: healthy })
  expect(needs('temporal')).toEqual({ postgresql: healthy, schema: done })
  expect(needs('namespace')).toEqual({ temporal: healthy })
  expect(needs('ui')).toEqual({ temporal: healthy })
  expect(needs('worker')).toEqual({ temporal: healthy, namespace: done })
  expect(needs('pools')).toEqual({ worker: healthy })
})

test('the database and the broker outlive their containers; everything else that is mounted is a file of ours, read only', () => {
  const mounted = services.flatMap(([name, { volumes = [] }]) =>
    volumes.map((volume) => ({ name, ...volume })),
  )
  const named = mounted
    .filter(({ type }) => type === 'volume')
    .map(({ name, source }) => `${name}: ${source}`)
  expect(named).toEqual(['postgresql: postgresql', 'worker: worker'])
  expect(Object.keys(model.volumes)).toEqual(['postgresql', 'worker'])
  for (const { source, read_only } of mounted.filter(({ type }) => type !== 'volume')) {
    expect(existsSync(source), source).toBe(true)
    expect(read_only, source).toBe(true)
  }
})

test('the worker runs Firepool from its package, as a user without rights', () => {
  const { build, command, cap_drop } = model.services.worker!
  expect(build).toEqual({ context: ROOT.replace(/\/$/, ''), dockerfile: 'deploy/docker/Dockerfile' })
  expect(command).toEqual(['worker'])
  expect(cap_drop).toEqual(['ALL'])
  const dockerfile = readFileSync(join(ROOT, 'deploy/docker/Dockerfile'), 'utf8')
  expect(dockerfile.match(/^USER .*/gm)).toEqual(['USER node'])
  // What it copies is there, and is not kept from it.
  const ignore = readFileSync(join(ROOT, 'deploy/docker/Dockerfile.dockerignore'), 'utf8').split('\n')
  const copied = [...dockerfile.matchAll(/^COPY (?!--from)(.+) \S+$/gm)].flatMap(([, files]) =>
    files!.split(' '),
  )
  expect(copied.length).toBeGreaterThan(5)
  for (const file of copied) {
    expect(existsSync(join(ROOT, file)), file).toBe(true)
    expect(ignore).toContain(`!${file}`)
  }
})

test('it sets up the server that our tests run: shards, password and settings', () => {
  const { postgresql, schema, temporal } = model.services as Record<string, Required<Service>>
  const passwords = [postgresql!.environment.POSTGRES_PASSWORD, schema!.environment.SQL_PASSWORD]
  expect(new Set([...passwords, temporal!.environment.POSTGRES_PWD]).size).toBe(1)
  expect(temporal!.environment).toMatchObject({ DB: 'postgres12', NUM_HISTORY_SHARDS: '64' })
  const [settings] = temporal!.volumes
  expect(settings!.target).toBe(temporal!.environment.DYNAMIC_CONFIG_FILE_PATH)
  expect(parse(readFileSync(settings!.source, 'utf8'))).toEqual({
    'system.enableActivityEagerExecution': [{ value: true }],
    'history.maximumBufferedEventsBatch': [{ value: 1000 }],
  })
})

test('its pools are right', () => {
  const { command, volumes } = model.services.pools!
  const { source, target } = volumes![0]!
  expect(command).toEqual(['pool', 'apply', '--file', target])
  expect(readPoolFile(source)).toMatchObject([{ name: 'cpu', budget: 4, standby: 1 }])
})
