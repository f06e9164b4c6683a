let isSecond = false

/** Whether the test that runs now has failed before, and is run once more (vitest.config.ts). */
export const isSecondTry = (): boolean => isSecond

/** For the tests' setup file: what is also used without vitest cannot ask it. */
export function tellWhetherSecondTry(second: boolean): void {
  isSecond = second
}
