import type { Problem } from './humaneval.js'
import { DEMO_ACTIVITY } from './names.js'
import { chooseProblems, partOf } from './plan.js'
import { type Rollout, rollouts } from './rollouts.js'
import type { RolloutsInput } from './workflows.js'

/**
 * The data side of the trainer: the rollouts of one step. A workflow has no files, and a step's rollouts (about 5 kB
 * each) fit a payload where all of them might not.
 */
export function createDemoActivities(problems: readonly Problem[]) {
  return {
    [DEMO_ACTIVITY.rollouts]: async ({ seed, step, plan }: RolloutsInput): Promise<Rollout[]> => {
      const chosen = chooseProblems(seed, plan.problems, problems.length)
      const part = partOf(chosen, step, plan.steps).map((at) => problems[at]!)
      return rollouts(part, { seed, broken: plan.broken })
    },
  }
}
