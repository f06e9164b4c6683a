"""A Python interpreter that has imported a profile's modules, and forks itself for each job (src/runner/zygote.ts starts it).

Lines of JSON on descriptor 3, both ways:
  from the runner   {"start": {folder, socket, imports, seeds}}, then {"fork": id, "nonce": text, "ahead": whether its job is still to come} for each job
  to the runner     {"importing": module}, then {"ready": {tasks}} or {"failed": {module, message}} or {"useless": why};
                    {"fork": id, "pid": pid} or {"fork": id, "no": why}; {"exit": pid, "code": n | null, "signal": n | null}

A child connects to the runner's socket for its control, standard output and error, each with the line "{nonce} {name}". It may
wait there for a long time: it is forked ahead of its job. Over control it gets that (8 hex digits of length, JSON), answers
{"ready": true} or {"exec": why}, and begins when it reads a byte "g": nothing of the job has run before, so the runner may drop
the child and run the job another way until then.
"""

import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import time
import types

CONTROL = 3
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
#: a variable whose bytes are overwritten in each child by those by which the runner finds a job's processes
ROOM = "FIREPOOL_ROOM"
#: for modules that start threads when they are imported: what has threads cannot be forked
COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
DEVICE = "/dev/nvidia"
PROBE_SECONDS = 10.0
LIMITS = {
    "memoryBytes": "RLIMIT_AS",
    "cpuSeconds": "RLIMIT_CPU",
    "openFiles": "RLIMIT_NOFILE",
    "processes": "RLIMIT_NPROC",
    "fileBytes": "RLIMIT_FSIZE",
}


class Impossible(Exception):
    """This job, or all of them, has to be run by an interpreter of its own; the text says why."""


def tell(message):
    data = (json.dumps(message) + "\n").encode()
    while data:
        data = data[os.write(CONTROL, data) :]


class Lines:
    """Lines of JSON from a descriptor."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.rest = b""

    def read(self):
        """What has come, after waiting for something; None at the end."""
        data = os.read(self.descriptor, 65536)
        if not data:
            return None
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def protect():
    """Ends with the runner, whatever becomes of it; and no job may read this memory, which all later jobs start from."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def find_room():
    """Address and size of the variable ROOM as the kernel shows it: later changes of the environment do not reach there."""
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    at = (b"\0" + ctypes.string_at(start, end - start)).find(b"\0" + ROOM.encode() + b"=")
    if at < 0:
        raise Impossible("its environment cannot be found")
    size = len(ctypes.string_at(start + at))
    os.environ.pop(ROOM)
    return start + at, size


def tasks():
    return len(os.listdir("/proc/self/task"))


def devices():
    """NVIDIA's devices that a module has opened: a child would share the parent's state in the driver."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink("/proc/self/fd/" + name))
        except OSError:
            pass  # the listing's own
    with open("/proc/self/maps", errors="replace") as maps:
        found.update(line.split()[-1] for line in maps if DEVICE in line)
    return sorted(path for path in found if path.startswith(DEVICE))


def preload(imports):
    os.environ.update({name: "1" for name in COUNTS})
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for module in imports:
        tell({"importing": module})
        try:
            importlib.import_module(module)
        except BaseException as error:  # also SystemExit: a module that ends its importer cannot be preloaded
            tell({"failed": {"module": module, "message": "%s: %s" % (type(error).__name__, error)}})
            sys.exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()


def is_bad_fork():
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and cuda._is_in_bad_fork()


def probe():
    """Forks once before anybody waits for it. @raises Impossible"""
    opened = devices()
    if opened:
        raise Impossible("a preloaded module has opened %s" % ", ".join(opened))
    if tasks() != 1:
        return  # asked again at each fork: a module's thread may be on its way out
    pid = os.fork()
    if pid == 0:
        os._exit(1 if is_bad_fork() else 0)
    deadline = time.monotonic() + PROBE_SECONDS
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise Impossible("a process forked from it hung")
        time.sleep(0.001)
    if status != 0:
        raise Impossible("CUDA was initialised by a preloaded module, or a process forked from it died")


def serve():
    """Forks a child for each request; returns in the child alone, with what it then does."""
    lines = Lines(CONTROL)
    start = None
    while start is None:
        requests = lines.read()
        if requests is None:
            os._exit(0)
        start = next((request["start"] for request in requests), None)
    try:
        protect()
        room = find_room()
        preload(start["imports"])
        probe()
        setters = thread_setters()
    except Impossible as error:
        tell({"useless": str(error)})
        os._exit(0)
    tell({"ready": {"tasks": tasks()}})

    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    running = set()
    while True:
        readable, _, _ = select.select([CONTROL, wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
            bury(running)
        if CONTROL not in readable:
            continue
        requests = lines.read()
        if requests is None:
            os._exit(0)
        for request in requests:
            count = tasks()
            if count != 1:
                tell({"fork": request["fork"], "no": "it has %d threads" % count})
                continue
            try:
                pid = os.fork()
            except OSError as error:
                tell({"fork": request["fork"], "no": "it could not be forked (%s)" % error.strerror})
                continue
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (wake, woken, CONTROL):
                    os.close(descriptor)
                return Child(start, request, room, setters)
            running.add(pid)
            tell({"fork": request["fork"], "pid": pid})


def bury(running):
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            running.discard(pid)
            by_signal = os.WIFSIGNALED(status)
            code = None if by_signal else os.WEXITSTATUS(status)
            tell({"exit": pid, "code": code, "signal": os.WTERMSIG(status) if by_signal else None})


class Child:
    """A forked process on its way to become a job."""

    def __init__(self, start, request, room, setters):
        self.start = start
        self.nonce = request["nonce"]
        self.is_ahead = request["ahead"]
        self.room = room
        self.setters = setters

    def become(self):
        """Takes the job. @returns a function that runs it; ends the process when there is none to run"""
        os.setsid()
        try:
            control, out, err = (self.connect(name) for name in ("control", "stdout", "stderr"))
            if self.is_ahead:
                rehearse()
            size = int(receive(control, 8), 16)
            job = json.loads(receive(control, size))
        except (EOFError, OSError):
            os._exit(0)  # the runner has ended, or hears of its end
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as exec does; what waits is as closed as the interpreter
        try:
            run = self.prepare(job)
        except Exception as error:
            why = str(error) if isinstance(error, Impossible) else "%s: %s" % (type(error).__name__, error)
            control.sendall((json.dumps({"exec": why}) + "\n").encode())
            os._exit(0)
        control.sendall(b'{"ready": true}\n')
        try:
            receive(control, 1)
        except (EOFError, ConnectionError):
            os._exit(0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        if job["stdin"]:
            os.dup2(control.fileno(), 0)  # what follows on it is the job's
        for stream in (control, out, err):
            stream.close()
        return run

    def connect(self, name):
        stream = socket.socket(socket.AF_UNIX)
        os.chdir(self.start["folder"])  # a socket's path has at most 107 bytes, the folder's has any number
        stream.connect(self.start["socket"])
        stream.sendall(("%s %s\n" % (self.nonce, name)).encode())
        return stream

    def prepare(self, job):
        """Everything that may still fail. @returns what runs the job. @raises Impossible, or any exception"""
        os.chdir(job["cwd"])
        self.set_environment(job["env"])
        importlib.invalidate_caches()  # files may have come since a folder was last looked at
        seed(self.start["seeds"])
        set_threads(self.setters)
        run = entry(job["argv"], job["cwd"])
        for name, value in job["limits"].items():
            kind = getattr(resource, LIMITS[name])
            # A hard limit one second later: SIGXCPU names the cause before SIGKILL ends it.
            resource.setrlimit(kind, (value, value + 1 if name == "cpuSeconds" else value))
        return run

    def set_environment(self, env):
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        tempfile = sys.modules.get("tempfile")
        if tempfile is not None:
            tempfile.tempdir = None
        marks = "\0".join("%s=%s" % (name, env[name]) for name in ("FIREPOOL_EPOCH", "FIREPOOL_JOB_ID"))
        address, size = self.room
        data = marks.encode()
        if len(data) > size:
            raise Impossible("its environment has no room for the marks of a job")
        ctypes.memmove(address, data.ljust(size, b"\0"), size)


def rehearse():
    """Does once what comes with every job: each page of memory that a forked process writes is copied first, and no job has to wait for these."""
    environment = dict(os.environ)
    json.loads(json.dumps({"env": environment}))
    os.environ.clear()
    os.environ.update(environment)
    importlib.invalidate_caches()
    seed(())
    exec(compile("", "<string>", "exec", 0, True), {})


def receive(stream, size):
    data = b""
    while len(data) < size:
        more = stream.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def seed(functions):
    """Two jobs that were forked from one state would draw the same numbers."""
    number = lambda: int.from_bytes(os.urandom(4), "little")
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(number())
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number())
    for name in functions:
        module, _, function = name.partition(":")
        try:
            getattr(importlib.import_module(module), function)(number())
        except Exception as error:
            raise Impossible("seeds: %s: %s: %s" % (name, type(error).__name__, error))


def thread_setters():
    """Functions of the libraries that are loaded now, each with the variable that says how many threads it is to set."""
    known = {
        "openblas": ("OPENBLAS_NUM_THREADS", ["%sopenblas_set_num_threads%s" % (a, b) for a in ("", "scipy_") for b in ("", "64_")]),
        "libmkl_rt": ("MKL_NUM_THREADS", ["MKL_Set_Num_Threads"]),
        "libgomp": ("OMP_NUM_THREADS", ["omp_set_num_threads"]),
        "libomp": ("OMP_NUM_THREADS", ["omp_set_num_threads"]),
        "libiomp": ("OMP_NUM_THREADS", ["omp_set_num_threads"]),
    }
    with open("/proc/self/maps", errors="replace") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "/" in line and ".so" in line}
    found = []
    for path in paths:
        for part, (name, functions) in known.items():
            if part in os.path.basename(path):
                library = ctypes.CDLL(path)
                found += [(name, getattr(library, function)) for function in functions if hasattr(library, function)]
    if "torch" in sys.modules:
        found.append(("MKL_NUM_THREADS", sys.modules["torch"].set_num_threads))
    return found


def set_threads(setters):
    """As many threads as the libraries would have started with, had they been loaded in this environment. One that is loaded later reads it."""
    processors = len(os.sched_getaffinity(0))
    for name, setter in setters:
        values = (os.environ.get(name, "").split(",")[0].strip() for name in (name, "OMP_NUM_THREADS"))
        setter(next((int(value) for value in values if value.isdigit() and int(value) > 0), processors))


def entry(argv, cwd):
    """What `argv` runs, as the interpreter would do it. @raises Impossible when it is for an interpreter to say what is wrong"""
    main = types.ModuleType("__main__")
    main.__dict__.update({"__builtins__": __builtins__, "__annotations__": {}})
    what = argv[1]
    where = 3 if what in ("-c", "-m") else 2
    if where == 2:
        path = os.path.join(cwd, what)
        if not os.path.isfile(path) or not os.access(path, os.R_OK):
            raise Impossible("%s is no file that can be read" % what)
        folder = os.path.dirname(os.path.realpath(path))
        main.__file__, main.__cached__ = path, None
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    else:
        folder = cwd if what == "-m" else ""
        main.__loader__ = importlib.machinery.BuiltinImporter

    def run():
        if where == 2:
            with open(path, "rb") as file:
                text = file.read()
            exec(compile(text, path, "exec", 0, True), main.__dict__)
        elif what == "-m":
            runpy._run_module_as_main(argv[2])
        else:
            code = argv[2]
            if sys.version_info >= (3, 14):
                import textwrap

                code = textwrap.dedent(code)
            exec(compile(code, "<string>", "exec", 0, True), main.__dict__)

    def begin():
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = folder
        sys.argv[:] = [what, *argv[where:]]
        sys.orig_argv = list(argv)
        sys.modules["__main__"] = main
        run()

    return begin


def attempt(run):
    """Runs a job to its end as an interpreter would: the frames of this file are no part of its traceback."""
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == attempt.__code__.co_filename:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


ME = sys.modules["__main__"]  # kept: a module that nobody holds loses what it has
if not getattr(sys.flags, "safe_path", False):
    sys.path[0] = ""  # the work folder, as for a job, and not the folder of this file
try:
    child = serve()
    job = child.become()
except KeyboardInterrupt:
    os._exit(130)
attempt(job)
