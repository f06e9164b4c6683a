import { defineConfig } from 'vitest/config'

/** Long tests share two cores with real servers: limits are for hangs, not for speed. */
export default defineConfig({
  test: {
    projects: [
      { test: { name: 'unit', include: ['src/**/*.test.ts'], testTimeout: 60_000 } },
      { test: { name: 'model', include: ['test/model/**/*.test.ts'], testTimeout: 300_000 } },
      { test: { name: 'replay', include: ['test/replay/**/*.test.ts'], testTimeout: 120_000 } },
      {
        test: {
          name: 'integration',
          include: ['test/integration/**/*.test.ts'],
          testTimeout: 240_000,
          hookTimeout: 240_000,
          fileParallelism: false,
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
          globalSetup: ['test/support/production-setup.ts'],
        },
      },
    ],
  },
})
