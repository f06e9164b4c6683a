/** What the demo's workflows, activities and their starter call each other. Not a part of Firepool's contract. */

/** The demo's own callers; workers of other demos on the same server must not take them, so a run adds its id. */
export const DEMO_QUEUE_PREFIX = 'firepool-demo'

export const DEMO_WORKFLOW = {
  rlLoop: 'demo.rlLoop',
  agentLoop: 'demo.agentLoop',
  agentSession: 'demo.agentSession',
} as const

export const DEMO_ACTIVITY = { rollouts: 'demo.rollouts' } as const

export const DEMO_QUERY = { progress: 'demo.progress' } as const

/** Workflow id of one session of an agent loop. */
export function sessionWorkflowId(loopWorkflowId: string, session: number): string {
  return `${loopWorkflowId}/session-${session + 1}`
}
