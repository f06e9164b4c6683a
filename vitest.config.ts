import { statSync } from 'node:fs'
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'

/**
 * Long tests share two cores with real servers: limits are for hangs, not for speed. Where real processes and servers take part, a
 * test that fails is run once more, and the report says which were (`retry x1`): the machines are shared, and one test among
 * a thousand that starved tells nothing of the change. The models and the replays have no such excuse.
 */
const REAL = { retry: 1 }

/** Files that take much longer than others of their size: they begin first, so that nobody waits for one of them at the end. */
const LONG = [
  ...['integration/bench', 'integration/demo', 'integration/pinned', 'integration/release-matrix'],
  ...['integration/short', 'integration/silent-pool', 'integration/two-workers'],
  ...['kubernetes/bench', 'kubernetes/bench-scale', 'kubernetes/real-node', 'kubernetes/real-pool'],
  ...['production/demo', 'production/release'],
]

/**
 * The long files first, whatever their project: those with a cluster wait for most of their time, those on a Temporal server alone
 * want both cores, and side by side they fill them. How long a file is says roughly how long it takes, also where none has been run yet.
 */
class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const isShort = ({ moduleId }: TestSpecification) =>
      !LONG.some((name) => moduleId.endsWith(`/${name}.test.ts`))
    const size = ({ moduleId }: TestSpecification) => statSync(moduleId).size
    return files.toSorted((a, b) => Number(isShort(a)) - Number(isShort(b)) || size(b) - size(a))
  }
}

/**
 * The tests of a folder, on what test/support/{setup}-setup.ts has obtained, each file with a server and a folder of its own.
 * @param alone what they measure would be changed by others
 */
const real = (
  name: string,
  setup: 'temporal' | 'production' | 'kubernetes',
  { testTimeout = 240_000, alone = false } = {},
) => ({
  test: {
    name,
    include: [`test/${name}/**/*.test.ts`],
    testTimeout,
    hookTimeout: 240_000,
    fileParallelism: !alone,
    ...REAL,
    globalSetup: ['callers-bundle', `${setup}-setup`].map((name) => `test/support/${name}.ts`),
    setupFiles: ['test/support/tries.ts'],
  },
})

export default defineConfig({
  test: {
    // Two cores are full with four of them: most of their time files wait for something real (a keep-alive, a pod that starts).
    maxWorkers: 4,
    sequence: { sequencer: LongFirst },
    projects: [
      {
        test: {
          name: 'unit',
          include: ['src/**/*.test.ts'],
          testTimeout: 60_000,
          hookTimeout: 60_000,
          ...REAL,
        },
      },
      { test: { name: 'model', include: ['test/model/**/*.test.ts'], testTimeout: 300_000 } },
      {
        test: {
          name: 'replay',
          include: ['test/replay/**/*.test.ts'],
          testTimeout: 120_000,
          hookTimeout: 120_000,
        },
      },
      real('integration', 'temporal'),
      real('interop', 'temporal'),
      real('production', 'production'),
      real('kubernetes', 'kubernetes'),
      real('chaos', 'temporal', { alone: true }),
      real('soak', 'kubernetes', { testTimeout: 600_000, alone: true }),
    ],
  },
})
