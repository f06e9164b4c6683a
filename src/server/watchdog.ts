import { spawn } from 'node:child_process'

/**
 * Reads its standard input. A line is the order to go; the end of the input without one means that our
 * process is gone, and then the group in $1 gets SIGTERM and, $2 tenths of a second later, SIGKILL.
 * It says `kill -s TERM` because Debian's sh refuses `kill -TERM -- -1234`.
 */
const SCRIPT = `
read -r _ && exit 0
kill -s TERM -- "-$1" 2>/dev/null || exit 0
n=0
while [ "$n" -lt "$2" ] && kill -s 0 -- "-$1" 2>/dev/null; do sleep 0.1; n=$((n+1)); done
kill -s KILL -- "-$1" 2>/dev/null
`

export interface Watchdog {
  /** the group ended in order: kill nothing, ever */
  dismiss(): void
}

/**
 * Kills a process group when this process ends without `dismiss`, even by SIGKILL: the kernel closes our
 * end of a pipe whichever way we go. One idle `sh` with a session of its own, so no Ctrl-C reaches it.
 */
export function watchOver(processGroupId: number, graceMs: number): Watchdog {
  const tenths = Math.ceil(graceMs / 100)
  const watchdog = spawn(
    '/bin/sh',
    ['-c', SCRIPT, 'firepool-watchdog', String(processGroupId), String(tenths)],
    {
      stdio: ['pipe', 'ignore', 'ignore'],
      detached: true,
    },
  )
  // Without a shell there is no watchdog; an orderly stop still works.
  watchdog.on('error', () => {})
  watchdog.stdin.on('error', () => {})
  watchdog.unref()
  ;(watchdog.stdin as unknown as { unref?: () => void }).unref?.()
  return {
    dismiss() {
      watchdog.stdin.end('done\n')
    },
  }
}
