import { defineConfig } from 'vitest/config'

/**
 * Long tests share two cores with real servers: limits are for hangs, not for speed. Where real processes and servers take part, a
 * test that fails is run once more, and the report says which were (`retry x1`): the machines are shared, and one test among
 * a thousand that starved tells nothing of the change. The models and the replays have no such excuse.
 */
const REAL = { retry: 1 }

/**
 * The tests of a folder, on what test/support/{setup}-setup.ts has obtained. Most of their time they wait for something real
 * (a keep-alive, a pod that starts): `files` of them share the machine, each with a server and a folder of its own.
 */
const real = (
  name: string,
  setup: 'temporal' | 'production' | 'kubernetes',
  { testTimeout = 240_000, files = 1 } = {},
) => ({
  test: {
    name,
    include: [`test/${name}/**/*.test.ts`],
    testTimeout,
    hookTimeout: 240_000,
    fileParallelism: files > 1,
    maxWorkers: files,
    ...REAL,
    globalSetup: [`test/support/${setup}-setup.ts`],
    setupFiles: ['test/support/tries.ts'],
  },
})

export default defineConfig({
  test: {
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
      real('integration', 'temporal', { files: 3 }),
      real('interop', 'temporal', { files: 3 }),
      real('chaos', 'temporal'),
      real('soak', 'kubernetes', { testTimeout: 600_000 }),
      real('production', 'production'),
      real('kubernetes', 'kubernetes', { files: 2 }),
    ],
  },
})
