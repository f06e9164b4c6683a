/** docs/kubernetes-guide.md: its commands of kubectl are run by kubectl, in their order, against a real API server. */
import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { freePort } from '../../src/server/free-port.js'
import { loadKeys } from '../../src/token/token.js'
import { startCli } from '../support/cli.js'
import { type ControlPlane, startControlPlane } from '../support/control-plane.js'
import { DEPLOY, obtainKubectl } from '../support/kubectl.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'

const run = promisify(execFile)
const ROOT = join(DEPLOY, '../..')
const GUIDE = readFileSync(join(ROOT, 'docs/kubernetes-guide.md'), 'utf8')
const SECTIONS = GUIDE.split('\n## ').slice(1)

/** Commands on lines of their own, and within a sentence. */
const commandsOf = (section: string): string[] =>
  [...section.matchAll(/^ {4,6}((?:kubectl|kind|docker|openssl) .+)$|`(kubectl [^`]+)`/gm)].map(
    ([, line, inline]) => (line ?? inline!).replaceAll(/\s*\n\s*/g, ' '),
  )

/** What needs a kubelet with containers: only its arguments are looked at. */
const OF_A_CONTAINER = /^kubectl (--namespace \S+ )?(exec|logs|port-forward)\b/

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('docs/kubernetes-guide.md', obstacle), () => {
  let cluster: ControlPlane
  let folder: string
  let env: NodeJS.ProcessEnv

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'firepool-guide-'))
    await cp(DEPLOY, join(folder, 'deploy/kubernetes'), { recursive: true })
    await mkdir(join(folder, 'bin'))
    await symlink(await obtainKubectl(), join(folder, 'bin/kubectl'))
    for (const file of ['client.pem', 'client.key']) await writeFile(join(folder, file), 'of a test')
    const [, path] = /say `(deploy\S+\/kustomization\.yaml)`/.exec(GUIDE)!
    const [, yaml] = /```yaml\n([\s\S]+?)```/.exec(GUIDE)!
    await mkdir(join(folder, path!, '..'), { recursive: true })
    await writeFile(join(folder, path!), yaml!)
    // kwok plays pods that become Ready whatever they are.
    cluster = await startControlPlane({ nodes: 2, namespace: 'tests' })
    env = {
      PATH: `${join(folder, 'bin')}:${process.env.PATH}`,
      HOME: folder,
      KUBECONFIG: cluster.kubeconfigPath,
    }
  })
  afterAll(async () => {
    await cluster?.stop()
    if (folder) await rm(folder, { recursive: true, force: true })
  })

  const shell = (line: string) => run('/bin/sh', ['-c', line], { cwd: folder, env })

  /** Words of a command as the shell takes it. */
  async function wordsOf(line: string): Promise<string[]> {
    const { stdout } = await run('/bin/sh', [
      '-c',
      `set -- ${line.replace(/ < \S+$/, '')}; printf '%s\\0' "$@"`,
    ])
    return stdout.split('\0').slice(0, -1)
  }

  /** kubectl refuses a flag that it does not know also when it is asked for help; Firepool's part is run without a server. */
  async function checkArguments(line: string): Promise<void> {
    const words = await wordsOf(line)
    const end = words.includes('--') ? words.indexOf('--') : words.length
    await run(join(folder, 'bin/kubectl'), [...words.slice(1, end), '--help'], { env })
    const object = words.slice(1, end).find((word) => /^(deployment|service)\//.test(word))
    await run(join(folder, 'bin/kubectl'), [...words.slice(1, 3), 'get', object!], { env })
    if (end === words.length) return
    const [firepool, ...args] = words.slice(end + 1)
    expect(firepool).toBe('firepool')
    const [, file] = / < (\S+)$/.exec(line) ?? []
    const input = file === undefined ? undefined : readFileSync(join(folder, file))
    const nobody = { ...env, TEMPORAL_ADDRESS: `127.0.0.1:${await freePort()}` }
    const { code, stderr } = await startCli(args, nobody, input).ended
    expect(code, `${line}: ${stderr}`).toBe(69)
  }

  /** Images that an earlier command has built. */
  const images = new Set<string>()

  async function checkDocker(line: string): Promise<void> {
    const words = await wordsOf(line)
    const after = (flag: string) => words[words.indexOf(flag) + 1]!
    if (words[1] === 'build') {
      const dockerfile = readFileSync(join(ROOT, after('--file')), 'utf8')
      expect(existsSync(join(ROOT, words.at(-1)!)), line).toBe(true)
      if (words.includes('--build-arg')) {
        const [name, image] = after('--build-arg').split('=')
        expect(dockerfile).toMatch(new RegExp(`^ARG ${name}=`, 'm'))
        expect(images).toContain(image)
      }
      images.add(after('--tag'))
    } else for (const image of words.filter((word) => /:\d/.test(word))) expect(images).toContain(image)
  }

  test('has commands in its sections', () => {
    expect(SECTIONS.map((section) => commandsOf(section).length)).toEqual([16, 13, 1, 6, 3, 1])
  })

  test.each(SECTIONS.map((section) => [section.split('\n')[0]!, section]))('%s', async (_, section) => {
    const secrets = '/api/v1/namespaces/firepool/secrets'
    // Firepool's part of a command waits for a server that is not there: for all of them at once.
    const checks: Promise<void>[] = []
    for (const line of commandsOf(section)) {
      // Each section begins with a cluster of its own.
      if (/create secret/.test(line)) {
        const [, name] = /secret \S+ (\S+)/.exec(line)!
        await cluster.api.delete(`${secrets}/${name}`).catch(() => undefined)
      }
      if (OF_A_CONTAINER.test(line)) checks.push(checkArguments(line))
      else if (/^(docker|kind load)/.test(line)) await checkDocker(line)
      else if (!/^kind /.test(line)) {
        if (line.startsWith('openssl')) await rm(join(folder, 'broker-key.pem'), { force: true })
        await shell(line).catch((error: Error) => {
          throw new Error(`${line}: ${error.message}`)
        })
      }
    }
    await Promise.all(checks)
  })

  test('its key is one that workers read, and the worker has it', async () => {
    const { data } = await cluster.api.get('/api/v1/namespaces/firepool/secrets/firepool-broker-key')
    const path = join(folder, 'keys')
    await mkdir(path)
    await writeFile(join(path, 'broker-key.pem'), Buffer.from(data['broker-key.pem'], 'base64'))
    expect(loadKeys(path).publicKeyBase64).toMatch(/^[A-Za-z0-9+/]{43}=$/)
    const { spec } = await cluster.api.get('/apis/apps/v1/namespaces/firepool/deployments/firepool-worker')
    const [container] = spec.template.spec.containers
    expect(container.image).toBe('registry.example/firepool:0.1.0')
    const map = container.envFrom[0].configMapRef.name
    const settings = await cluster.api.get(`/api/v1/namespaces/firepool/configmaps/${map}`)
    expect(settings.data).toEqual({
      TEMPORAL_ADDRESS: 'temporal-frontend.temporal:7233',
      TEMPORAL_NAMESPACE: 'agents',
    })
  })
})
