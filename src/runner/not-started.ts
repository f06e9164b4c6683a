import { existsSync } from 'node:fs'
import { type Problem, problem } from '../contract/index.js'

/** Why a command never ran. @param code of the system's error */
export function notStartedProblem(cwd: string, command: string, code: string, pod: string): Problem {
  const name = JSON.stringify(command.slice(0, 200))
  const details = { reason: code, command: command.slice(0, 200) }
  if (code === 'ENOENT' && !existsSync(cwd))
    return problem(
      'InvalidRequest',
      'The work folder of the job is gone: an earlier job removed it. Take a fresh pod.',
      details,
    )
  switch (code) {
    case 'ENOENT':
      return problem(
        'InvalidRequest',
        `There is no command ${name} in the pod. Check its spelling and PATH, install it in the image or by profile.prepare, or give a text instead of a list to run it by /bin/sh.`,
        details,
      )
    case 'EACCES':
    case 'ENOEXEC':
    case 'ENOTDIR':
    case 'EISDIR':
    case 'ELOOP':
      return problem(
        'InvalidRequest',
        `The command ${name} cannot be executed (${code}). Set its mode to 0o755 (job.files has \`mode\`), or call its interpreter: ["sh", ${name}].`,
        details,
      )
    case 'E2BIG':
      return problem(
        'InvalidRequest',
        `The command line and environment of ${name} are larger than the system allows. Pass the data by stdin or job.files.`,
        details,
      )
    default:
      return problem('PodLost', `The pod could not start ${name} (${code}). Replace the pod.`, {
        ...details,
        pod,
      })
  }
}
