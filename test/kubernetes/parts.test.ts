import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findControlPlaneParts, obtainControlPlaneParts } from '../support/control-plane-parts.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'

/** Where the programs of a control plane are found. */

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('the programs of a control plane', obstacle), () => {
  let real: string
  let folder: string
  beforeAll(async () => {
    real = dirname((await obtainControlPlaneParts()).etcd)
    folder = mkdtempSync(join(tmpdir(), 'firepool-parts-test-'))
  })
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  /** Nothing but what is named: no cache, and no program of this machine. */
  const nothing = () => ({ FIREPOOL_CACHE_DIR: join(folder, 'cache'), PATH: '' })

  test('are not found where there are none', async () => {
    expect(await findControlPlaneParts(nothing())).toBeUndefined()
  })

  test('are those of the folder that is named, before all others', async () => {
    const parts = await findControlPlaneParts({ ...nothing(), PATH: real, FIREPOOL_CONTROL_PLANE: real })
    expect(parts).toMatchObject({ kwok: join(real, 'kwok'), description: `FIREPOOL_CONTROL_PLANE (${real})` })
  })

  test('must all be in the folder that is named', async () => {
    symlinkSync(join(real, 'etcd'), join(folder, 'etcd'))
    await expect(findControlPlaneParts({ ...nothing(), FIREPOOL_CONTROL_PLANE: folder })).rejects.toThrow(
      /has no program kube-apiserver, kube-controller-manager, kube-scheduler, kwok\./,
    )
  })

  test('are taken from PATH, all of them', async () => {
    const parts = await findControlPlaneParts({ ...nothing(), PATH: `${folder}:${real}` })
    expect(parts).toMatchObject({ etcd: join(folder, 'etcd'), kwok: join(real, 'kwok') })
    expect(await findControlPlaneParts({ ...nothing(), PATH: folder })).toBeUndefined()
  })

  test('are not taken from PATH in a version that will not do', async () => {
    const old = mkdtempSync(join(folder, 'old-'))
    writeFileSync(join(old, 'etcd'), '#!/bin/sh\necho etcd Version: 3.4.23\n', { mode: 0o755 })
    expect(await findControlPlaneParts({ ...nothing(), PATH: `${old}:${real}:/bin` })).toBeUndefined()
  })
})
