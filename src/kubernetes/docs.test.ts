/** docs/kubernetes.md has the reasons that the code has, and no others. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'

const folder = fileURLToPath(new URL('.', import.meta.url))
const text = readFileSync(new URL('../../docs/kubernetes.md', import.meta.url), 'utf8')

/** Texts of this form that are no reasons: of the API server's, of conditions, kinds and errors. */
const OTHERS =
  /^(AlreadyExists|Conflict|Expired|Gone|Unknown|Completed|Error|Failed|Succeeded|Pending|Running|True|False|Ready|Never|Strict|Background|Accept|Authorization|PodScheduled|DisruptionTarget|PodReadyToStartContainers|RollingUpdate|RuntimeDefault|FallbackToLogsOnError|IfNotPresent|Namespaced?|Pod|ConfigMap|DaemonSet|ResourceClaim|ResourceClaimTemplate|ExactCount|TokenReview|TimeoutError|AbortError|KubeError|KubernetesSettingsError|PreemptionByScheduler|CreateFailed)$/

test('every reason, with a meaning', () => {
  const rows = [...text.matchAll(/^\| (`[^|]+) \| ([^|]+) \| ([^|]+) \|$/gm)].filter(([, first]) =>
    /`[A-Z]/.test(first!),
  )
  const documented = rows.flatMap(([, names]) => [...names!.matchAll(/`(\w+)`/g)].map(([, name]) => name!))
  expect(new Set(documented).size).toBe(documented.length)
  const source = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => /(?<!\.test|\.fixture)\.ts$/.test(name))
    .map((name) => readFileSync(join(folder, name), 'utf8'))
    .join('\n')
  const words = [...source.matchAll(/'((?:[A-Z][a-z]+)*(?:[A-Z]+[a-z]+)+)'/g)].map(([, word]) => word!)
  const reasons = new Set(words.filter((word) => !OTHERS.test(word)))
  const later = ['NodeCordoned', 'NodeNotReady', 'NotReady']
  expect([...reasons].filter((word) => !documented.includes(word) && !later.includes(word))).toEqual([])
  // What a kubelet or a scheduler says is passed on; the tests of a cluster have these.
  const passedOn = ['Unschedulable', 'SchedulingGated', 'OOMKilled', 'Evicted']
  expect(documented.filter((word) => !reasons.has(word) && !passedOn.includes(word))).toEqual([])
  for (const name of later) expect(text).toContain(`\`${name}\``)
})
