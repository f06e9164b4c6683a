/** How a container runs the runner. */

/** Where deploy/docker/Dockerfile puts the package. */
const RUNNER_MAIN = '/opt/firepool/node_modules/firepool/dist/runner/main.js'

/**
 * Process 1 of a container inherits all orphans, and node does not wait for children that it has not started: each process that outlives its
 * parent in a job would stay as a zombie, and take a place among the pod's pids. A shell waits for whatever ends. It hands SIGTERM on to the
 * runner, and ends as that does. Where it is not process 1 it becomes the runner. No `$$`: a kubelet would read it as `$`.
 */
export const REAPING = `read -r pid _ < /proc/self/stat
[ "$pid" = 1 ] || exec "$0" "$@"
trap 'kill -TERM "$runner"' TERM INT
"$0" "$@" &
runner=$!
until wait "$runner"; code=$?; ! kill -0 "$runner" 2> /dev/null; do :; done
exit "$code"`

/** The images' own command as well: deploy/kubernetes/images. */
export const RUNNER_COMMAND: readonly string[] = ['/bin/sh', '-c', REAPING, 'node', RUNNER_MAIN]
