/** What must be undone at the end, however the demo ends: last made, first undone. */
export class Cleanup {
  private readonly steps: { what: string; undo: () => unknown }[] = []
  private running: Promise<string[]> | undefined

  /** From now on things end because they are ended. */
  get started(): boolean {
    return this.running !== undefined
  }

  /** Registers a step; to be called right after (or, for what can be half made, before) the thing is made. */
  add(what: string, undo: () => unknown): void {
    this.steps.push({ what, undo })
  }

  /**
   * Undoes all, once; a step that fails does not keep the others from running.
   * @returns what could not be undone, one line each
   */
  run(): Promise<string[]> {
    this.running ??= this.undoAll()
    return this.running
  }

  private async undoAll(): Promise<string[]> {
    const failures: string[] = []
    for (let step = this.steps.pop(); step; step = this.steps.pop()) {
      try {
        await step.undo()
      } catch (error) {
        failures.push(`${step.what}: ${error instanceof Error ? error.message : String(error)}`)
      }
    }
    return failures
  }
}
