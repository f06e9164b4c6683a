/** What was started, to be stopped in the opposite order. */
export class Teardown {
  #steps: { name: string; stop: () => Promise<unknown> | unknown }[] = []

  add(name: string, stop: () => Promise<unknown> | unknown): void {
    this.#steps.push({ name, stop })
  }

  /**
   * Stops everything; a step that fails does not keep the others from it. Every step runs once, also when this is called
   * again while it runs.
   * @returns what failed
   */
  async run(onStep: (name: string) => void = () => {}): Promise<string[]> {
    const failures: string[] = []
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) {
      onStep(step.name)
      try {
        await step.stop()
      } catch (error) {
        failures.push(`${step.name}: ${error instanceof Error ? error.message : String(error)}`)
      }
    }
    return failures
  }
}
