/**
 * The judge that runs in the pod, as Python source for check.py. It is handed, on standard input, one JSON line
 * { nonce, prompt, test, entryPoint, seed } and prints one verdict line to standard output:
 *
 *     firepool-verdict <nonce> pass|fail <number of calls> <why>
 *
 * The tests run in this process; the candidate runs in a forked child that answers calls over pipes, in plain
 * literals. So the candidate
 * - cannot print a verdict: it never sees the nonce or the tests (it is forked before they are read, its standard
 *   input is /dev/null and its standard output goes to standard error);
 * - cannot end early with success: a child that is gone is a failed call;
 * - cannot answer with an object that claims to equal everything: what is not a literal is refused.
 * What it does not stop: an attacker who reads this process's memory (same user, kernel.yama.ptrace_scope 0). Fork
 * instead of a second interpreter saves one start of Python.
 */
export const CHECKER = String.raw`import ast
import os
import sys

ANSWER_LIMIT = 16 << 20


class Gone(Exception):
    pass


class Raised(Exception):
    pass


def serve(calls, answers):
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    # Line by line: this process is killed at the end, with whatever it has not flushed.
    sys.stdout = sys.stderr
    entry_point = calls.readline().decode("ascii").strip()
    with open("candidate.py", encoding="utf-8") as file:
        source = file.read()
    space = {"__name__": "candidate"}
    exec(compile(source, "candidate.py", "exec"), space)
    for line in calls:
        args, keywords = ast.literal_eval(line.decode("ascii"))
        try:
            answer = "= " + ascii(space[entry_point](*args, **keywords))
        except Exception as error:
            answer = "! " + ascii(type(error).__name__ + ": " + str(error)[:200])
        answers.write(answer.replace("\n", " ").encode("ascii") + b"\n")
        answers.flush()


def start():
    call_read, call_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(call_write)
            os.close(answer_read)
            serve(os.fdopen(call_read, "rb"), os.fdopen(answer_write, "wb"))
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(call_read)
    os.close(answer_write)
    return child, os.fdopen(call_write, "wb"), os.fdopen(answer_read, "rb")


class Candidate:
    def __init__(self, calls, answers, entry_point):
        self.calls, self.answers, self.count = calls, answers, 0
        self.calls.write(entry_point.encode("ascii") + b"\n")
        # At once: the candidate loads while this process loads the tests.
        self.calls.flush()

    def __call__(self, *args, **keywords):
        try:
            self.calls.write(ascii((args, keywords)).encode("ascii") + b"\n")
            self.calls.flush()
        except BrokenPipeError:
            raise Gone("the candidate's process ended before its tests did") from None
        line = self.answers.readline(ANSWER_LIMIT)
        if not line.endswith(b"\n"):
            raise Gone("the candidate's process ended, or its answer has no end")
        self.count += 1
        text = line.decode("ascii")
        if text[:2] != "= ":
            raise Raised(text[2:].strip())
        return ast.literal_eval(text[2:].strip())


def judge(candidate, task):
    try:
        space = {"__name__": "check"}
        # The prompt brings the helpers that some tests call; the function itself is the candidate's.
        exec(compile(task["prompt"], "prompt.py", "exec"), space)
        space[task["entryPoint"]] = candidate
        if "random" in task["test"]:
            import random

            random.seed(task["seed"])
        exec(compile(task["test"], "test.py", "exec"), space)
        space["check"](candidate)
    except BaseException as error:
        return "fail", type(error).__name__ + ": " + str(error)
    if candidate.count == 0:
        return "fail", "the tests never called the candidate"
    return "pass", "ok"


def main():
    child, calls, answers = start()
    # A JSON object of texts and whole numbers is a Python literal too, and json is slower to import.
    task = ast.literal_eval(sys.stdin.buffer.readline().decode("utf-8"))
    # Nothing that reads this process's standard input by its path finds the task there any more.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    candidate = Candidate(calls, answers, task["entryPoint"])
    verdict, why = judge(candidate, task)
    os.kill(child, 9)
    os.waitpid(child, 0)
    words = ascii(why[:200])[1:-1]
    os.write(1, f"firepool-verdict {task['nonce']} {verdict} {candidate.count} {words}\n".encode("ascii"))
    # Not sys.exit: it would flush pipes that nobody reads any more.
    os._exit(0 if verdict == "pass" else 1)


main()
`
