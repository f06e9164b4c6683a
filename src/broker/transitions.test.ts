import { describe, expect, it } from 'vitest'
import { makeWorld } from '../../test/support/broker-world.js'
import { createPod, movePod } from './pods.js'
import { createState, type Pod } from './state.js'
import { type PodEvent, type PodKind, TRANSITIONS } from './transitions.js'
import type { Turn } from './turn.js'

/** The table is complete, `movePod` obeys every cell, and the cells that can happen do happen in a world. */

const KINDS: PodKind[] = ['starting', 'standby', 'promoting', 'leased', 'idle', 'draining', 'deleting']
const EVENTS: PodEvent[] = ['ready', 'grant', 'delivered', 'release', 'drain', 'refused', 'remove', 'gone']
const CELLS = KINDS.flatMap((kind) => EVENTS.map((event) => [kind, event, TRANSITIONS[kind][event]] as const))

/** A turn with one pod of this kind. */
function aTurn(kind: PodKind): { turn: Turn; pod: Pod } {
  const state = createState(makeWorld().state.spec, 'abc123', 0)
  const turn: Turn = { state, now: 1, effects: [], newClaims: [], newIdle: [], answered: new Set() }
  createPod(turn, { generation: 1, profile: state.spec.profile }, null)
  const [pod] = state.pods.values()
  if (!pod) throw new Error('no pod')
  state.index.removePod(pod)
  const held = kind !== 'starting' && kind !== 'standby'
  const owner = { caller: 'ann', reuseTag: '' }
  Object.assign(pod, { kind, since: 0, ...(held ? { owner, slot: '0', heldSince: 0, epoch: 1 } : {}) })
  state.index.addPod(pod)
  return { turn, pod }
}

describe('the transition table', () => {
  it('has a cell for each kind and each event, and no others', () => {
    expect(Object.keys(TRANSITIONS).sort()).toEqual([...KINDS].sort())
    for (const kind of KINDS) expect(Object.keys(TRANSITIONS[kind]).sort()).toEqual([...EVENTS].sort())
  })

  it.each(CELLS)('%s + %s -> %s', (kind, event, next) => {
    const { turn, pod } = aTurn(kind)
    const { index } = turn.state
    const change =
      event === 'grant' ? { owner: { caller: 'ann', reuseTag: '' }, slot: '0', heldSince: 1 } : {}
    const before = JSON.stringify(pod)
    const move = () => movePod(turn, pod, event, change)
    if (next === null) {
      expect(move).toThrow('cannot happen')
      expect(JSON.stringify(pod)).toBe(before)
      expect(index.byKind[kind].has(pod.pod)).toBe(true)
      return
    }
    move()
    if (next === 'end') {
      expect(turn.state.pods.size).toBe(0)
      expect(index.held).toBe(0)
      for (const each of KINDS) expect(index.byKind[each].size).toBe(0)
      return
    }
    const kindNow = next === 'same' ? kind : next
    expect(pod.kind).toBe(kindNow)
    expect(pod.since).toBe(next === 'same' ? 0 : 1)
    for (const each of KINDS) expect(index.byKind[each].size).toBe(each === kindNow ? 1 : 0)
    expect(index.idleByOwner.size).toBe(kindNow === 'idle' ? 1 : 0)
    expect(turn.newIdle).toEqual(kindNow === 'idle' ? [pod.pod] : [])
  })

  it('leads nowhere without a way out: from every kind a pod can be deleted, or be gone', () => {
    for (const kind of KINDS) expect([TRANSITIONS[kind].remove, TRANSITIONS[kind].gone]).not.toContain(null)
  })

  it('lets no pod go back to having no caller (I2)', () => {
    for (const kind of KINDS) {
      const reaches = Object.values(TRANSITIONS[kind]).includes('standby')
      expect(reaches).toBe(kind === 'starting')
    }
  })
})

describe('what happens in a world', () => {
  it('goes through every change of kind that the table allows', () => {
    const happened = new Set<string>()
    const watch = (w: ReturnType<typeof makeWorld>) => {
      let before = new Map<string, PodKind>()
      return (ms: number) => {
        for (let t = 0; t < ms; t += 5) {
          w.advance(5)
          const after = new Map([...w.state.pods.values()].map((p) => [p.pod, p.kind]))
          for (const [pod, kind] of before) {
            const now = after.get(pod) ?? 'end'
            if (now !== kind) happened.add(`${kind} -> ${now}`)
            // Two changes in one step: a pod that becomes Ready is given away at once.
            if (kind === 'starting' && now === 'promoting')
              happened.add('starting -> standby').add('standby -> promoting')
          }
          before = after
        }
      }
    }
    for (const [kind, how] of [
      ['starting', 'remove'],
      ['starting', 'gone'],
      ['standby', 'remove'],
      ['standby', 'gone'],
      ['promoting', 'remove'],
      ['promoting', 'gone'],
      ['promoting', 'release'],
      ['leased', 'remove'],
      ['leased', 'gone'],
      ['leased', 'release'],
      ['idle', 'remove'],
      ['idle', 'gone'],
      ['idle', 'grant'],
      ['draining', 'remove'],
      ['draining', 'gone'],
      ['draining', 'release'],
      ['draining', 'refused'],
      ['deleting', 'gone'],
    ] as const) {
      const w = makeWorld({ spec: { standby: kind === 'standby' ? 1 : 0, keepAliveMs: 2_000 } })
      w.backend.startMs = () => 100
      w.handling = (effect) => ({ beforeMs: effect.kind === 'deliver' || effect.kind === 'drain' ? 50 : 5 })
      const run = watch(w)
      const lease = kind === 'standby' ? '' : w.request()
      for (let i = 0; i < 2_000 && w.pods(kind).length === 0; i++) {
        run(5)
        if (kind === 'idle' && w.lease(lease)?.kind === 'granted' && w.grants.has(lease)) w.release(lease)
        if (kind === 'deleting' && w.grants.has(lease)) w.backend.kill(w.granted(lease).pod, 'failed')
      }
      const [pod] = w.pods(kind)
      if (!pod) throw new Error(`no pod is ${kind}`)
      if (how === 'gone')
        w.send({
          kind: 'observed',
          asOfMs: w.now,
          full: false,
          pods: [{ pod, generation: 1, phase: 'gone' }],
        })
      if (how === 'remove')
        w.send({
          kind: 'observed',
          asOfMs: w.now,
          full: false,
          pods: [{ pod, generation: 1, phase: 'failed' }],
        })
      if (how === 'release') w.release(lease)
      if (how === 'grant') w.request({ workflowId: 'next' })
      if (how === 'refused' || (how === 'release' && kind === 'draining'))
        w.job(w.effectsOf('deliver')[0]!.grant.leaseId, 10)
      run(400)
    }
    const allowed = CELLS.flatMap(([kind, , next]) =>
      next === null || next === 'same' ? [] : [`${kind} -> ${next}`],
    )
    expect(new Set(allowed.filter((a) => !happened.has(a)))).toEqual(new Set())
  })
})
