import { activityInfo, type Context } from '@temporalio/activity'

const HEARTBEAT_MS = 1_000

/** Heartbeats until `work` is settled. They tell the server that this worker lives, and bring cancellation. */
export async function beating<T>(context: Context, details: unknown, work: Promise<T>): Promise<T> {
  const timer = setInterval(() => context.heartbeat(details), HEARTBEAT_MS)
  try {
    return await work
  } finally {
    clearInterval(timer)
  }
}

/** Whether an earlier attempt may have done something: an operator's reset counts attempts from 1 again, and keeps their word. */
export function isLaterAttempt(): boolean {
  const { attempt, heartbeatDetails } = activityInfo()
  return attempt > 1 || (heartbeatDetails !== undefined && heartbeatDetails !== null)
}
