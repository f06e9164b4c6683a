/**
 * Every patched() id of the workflows here, so that no change which running histories can see loses its gate. A change
 * of the order of commands goes behind `patched('firepool-N')`; N counts up; an id is never used twice.
 *
 * The gate stays as long as a history recorded before it may still run: for the caller's library, which lives in
 * users' histories, that is until a release says otherwise.
 */
export interface Patch {
  /** what changed */
  change: string
  /** a file of test/histories recorded BEFORE the change, which replays over the old branch */
  historyBefore: string
  /** one recorded after it */
  historyAfter: string
}

export const PATCHES: Readonly<Record<string, Patch>> = {
  'firepool-short-jobs': {
    change: 'no change, but a fact: the worker of this run had the plugin when its first short job came',
    historyBefore: 'caller-loop',
    historyAfter: 'caller-short',
  },
  'firepool-rollout': {
    change: 'a pool begins with version 2 of the core, in which a new template rolls step by step',
    historyBefore: 'pool-template-before',
    historyAfter: 'pool-rollout',
  },
  'firepool-seat-sets': {
    change: 'a pool begins with version 3 of the core, which places pods on seat sets',
    historyBefore: 'pool-rollout',
    historyAfter: 'pool-seat-sets',
  },
  'firepool-sick-sets': {
    change: 'a pool begins with version 4 of the core, which keeps off seat sets that are sick',
    historyBefore: 'pool-seat-sets',
    historyAfter: 'pool-sick-sets',
  },
  'firepool-head-alone': {
    change:
      "a shard counts what operators signal to it by hand as poison: the pool's first workflow alone is told",
    historyBefore: 'pool-shard-paused',
    historyAfter: 'pool-shard-refuses',
  },
  'firepool-silent-pool': {
    change:
      'who waits for a pod ends by itself when the pool says nothing, and a renewal tells a pool that is gone from one that is busy',
    historyBefore: 'caller-pinned',
    historyAfter: 'caller-silent',
  },
}
