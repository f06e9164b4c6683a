import { condition } from '@temporalio/workflow'

/** A workflow that waits for ever and has nothing: what any cached workflow costs. */
export async function idle(): Promise<void> {
  await condition(() => false)
}
