/** Why a request waits, as `firepool.queue` and the details of a QueueTimeout say it; docs/contract.md has the table. */
export const WAIT_REASONS = [
  'BudgetExhausted',
  'PodStarting',
  'PodStartFailed',
  'SlotBusy',
  'PoolPaused',
  'PoolDraining',
  'PoolDeleting',
] as const

export type WaitReason = (typeof WAIT_REASONS)[number]

export function isWaitReason(value: unknown): value is WaitReason {
  return (WAIT_REASONS as readonly unknown[]).includes(value)
}
