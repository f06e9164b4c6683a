import { defineConfig } from 'vitest/config'

/**
 * Long tests share two cores with real servers: limits are for hangs, not for speed. Where real processes and servers take part, a
 * test that fails is run once more, and the report says which were (`retry x1`): the machines are shared, and one test among
 * a thousand that starved tells nothing of the change. The models and the replays have no such excuse.
 */
const REAL = { retry: 1 }

export default defineConfig({
  test: {
    projects: [
      { test: { name: 'unit', include: ['src/**/*.test.ts'], testTimeout: 60_000, ...REAL } },
      { test: { name: 'model', include: ['test/model/**/*.test.ts'], testTimeout: 300_000 } },
      { test: { name: 'replay', include: ['test/replay/**/*.test.ts'], testTimeout: 120_000 } },
      {
        test: {
          name: 'integration',
          include: ['test/integration/**/*.test.ts'],
          testTimeout: 240_000,
          hookTimeout: 240_000,
          fileParallelism: false,
          ...REAL,
          globalSetup: ['test/support/temporal-setup.ts'],
        },
      },
      {
        test: {
          name: 'interop',
          include: ['test/interop/**/*.test.ts'],
          testTimeout: 240_000,
          hookTimeout: 240_000,
          fileParallelism: false,
          ...REAL,
          globalSetup: ['test/support/temporal-setup.ts'],
        },
      },
      {
        test: {
          name: 'chaos',
          include: ['test/chaos/**/*.test.ts'],
          testTimeout: 240_000,
          hookTimeout: 240_000,
          fileParallelism: false,
          ...REAL,
          globalSetup: ['test/support/temporal-setup.ts'],
        },
      },
      {
        test: {
          name: 'soak',
          include: ['test/soak/**/*.test.ts'],
          testTimeout: 600_000,
          hookTimeout: 240_000,
          fileParallelism: false,
          ...REAL,
          globalSetup: ['test/support/temporal-setup.ts'],
        },
      },
      {
        test: {
          name: 'production',
          include: ['test/production/**/*.test.ts'],
          testTimeout: 240_000,
          hookTimeout: 240_000,
          fileParallelism: false,
          ...REAL,
          globalSetup: ['test/support/production-setup.ts'],
        },
      },
    ],
  },
})
