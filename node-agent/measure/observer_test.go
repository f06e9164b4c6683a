package measure

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/measure/fakenvml"
)

// node is a folder of fake devices, with the agent's own way of looking at them.
type node struct {
	t        testing.TB
	driver   *fakenvml.Driver
	observer *Observer
	devices  []arbiter.Device
}

func newNode(t testing.TB, identify Identify) *node {
	t.Helper()
	folder := t.TempDir()
	if err := fakenvml.Create(folder, 2); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, driver: fakenvml.New(folder)}
	n.devices, _ = n.driver.Devices()
	n.observer = &Observer{ProcRoot: "/proc", Identify: identify, Driver: n.driver, Files: map[FileID]string{}, Folder: folder + "/", SkipUnreadable: true}
	for _, device := range n.devices {
		id, err := IdentityOf(n.driver.File(device.Minor))
		if err != nil {
			t.Fatal(err)
		}
		n.observer.Files[id] = device.UUID
	}
	return n
}

func (n *node) describe(change func(gpu *fakenvml.GPU)) {
	n.t.Helper()
	described, err := fakenvml.Read(n.driver.Folder)
	if err != nil {
		n.t.Fatal(err)
	}
	change(&described.GPUs[0])
	if err := fakenvml.Write(n.driver.Folder, described); err != nil {
		n.t.Fatal(err)
	}
}

// start runs a program as the pod's process and waits for its first line. It may not exec after that: in the midst of an exec the variable
// that stands for a cgroup cannot be read, and the process is nobody's for a moment.
func (n *node) start(pod string, program ...string) *exec.Cmd {
	n.t.Helper()
	command := exec.Command(program[0], program[1:]...)
	command.Env = append(os.Environ(), FakeIdentityVariable+"="+pod)
	stdout, err := command.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	stdin, err := command.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = stdin.Close(); _ = command.Process.Kill(); _ = command.Wait() })
	line := make([]byte, 64)
	if count, err := stdout.Read(line); err != nil {
		n.t.Fatalf("%v: %q, %v", program, line[:count], err)
	}
	return command
}

func (n *node) shell(pod, script string) *exec.Cmd {
	return n.start(pod, "sh", "-c", strings.ReplaceAll(script, "DEVICE", n.driver.File(0)))
}

func everybody(arbiter.PodUID) bool { return true }

func (n *node) openers(ours func(arbiter.PodUID) bool) []int {
	n.t.Helper()
	observed := n.observer.Observe(ours, n.devices)
	if problem := observed.GPUs[0].Openers.Problem; problem != "" {
		n.t.Fatal(problem)
	}
	if len(observed.GPUs[1].Openers.Processes) > 0 {
		n.t.Fatalf("nobody has the other device open: %+v", observed.GPUs[1])
	}
	var pids []int
	for _, p := range observed.GPUs[0].Openers.Processes {
		pids = append(pids, p.Pid)
	}
	return pids
}

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 to hold a device in an unusual way")
	}
	return path
}

func TestWhoHasADeviceOpen(t *testing.T) {
	n := newNode(t, ByFakeVariable)
	holds := n.shell(uidA, "exec 3<DEVICE; echo up; read _")
	n.shell(uidA, "echo up; read _")
	if got := n.openers(everybody); !slices.Equal(got, []int{holds.Process.Pid}) {
		t.Fatalf("%v, wanted %d", got, holds.Process.Pid)
	}
	observed := n.observer.Observe(everybody, n.devices)
	if listed := observed.GPUs[0].Listed; listed.Problem != "" || len(listed.Processes) != 1 || listed.Processes[0].Pod != uidA {
		t.Fatalf("%+v", listed)
	}
	if used := observed.GPUs[0].Used; used.Bytes != 104<<20 {
		t.Fatalf("%+v", used)
	}
	if len(observed.Pods.ByPod[uidA]) != 2 {
		t.Fatalf("%+v", observed.Pods)
	}
}

func TestADoubleForkedGrandchildIsFoundByItsPod(t *testing.T) {
	n := newNode(t, ByFakeVariable)
	parent := n.shell(uidA, "( ( exec 3<DEVICE; echo up; exec sleep 600 ) & ) ; exit 0")
	if err := parent.Wait(); err != nil {
		t.Fatal(err)
	}
	pids := n.openers(everybody)
	if len(pids) != 1 || pids[0] == parent.Process.Pid {
		t.Fatalf("%v", pids)
	}
	process := n.observer.Observe(everybody, n.devices).GPUs[0].Openers.Processes[0]
	if process.Pod != uidA {
		t.Fatalf("%+v", process)
	}
	other := process
	other.StartMs++
	if err := Kill("/proc", other); err != nil {
		t.Fatal(err)
	}
	if got := n.openers(everybody); len(got) != 1 {
		t.Fatal("a process of another start was killed")
	}
	if err := Kill("/proc", process); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return len(n.openers(everybody)) == 0 })
}

func TestAMappingHoldsADeviceAfterItsDescriptorIsClosed(t *testing.T) {
	n := newNode(t, ByFakeVariable)
	holder := n.start(uidA, python(t), "-c", `
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
held = mmap.mmap(fd, 4, access=mmap.ACCESS_READ, trackfd=False) if sys.version_info >= (3, 13) else None
if held is None:
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mmap(None, 4096, 1, 1, fd, 0)
os.close(fd)
print("up", flush=True)
sys.stdin.read()
`, n.driver.File(0))
	if os.Geteuid() != 0 {
		t.Skip("only root can follow another process's map_files")
	}
	if got := n.openers(everybody); !slices.Equal(got, []int{holder.Process.Pid}) {
		t.Fatalf("%v", got)
	}
}

func TestAThreadWithFilesOfItsOwnIsFound(t *testing.T) {
	n := newNode(t, ByFakeVariable)
	holder := n.start(uidA, python(t), "-c", `
import ctypes, os, sys, threading
def hold():
    if ctypes.CDLL(None).unshare(0x400) != 0: raise OSError("unshare(CLONE_FILES)")
    os.open(sys.argv[1], os.O_RDONLY)
    print("up", flush=True)
    sys.stdin.read()
threading.Thread(target=hold).start()
`, n.driver.File(0))
	if got := n.openers(everybody); !slices.Equal(got, []int{holder.Process.Pid}) {
		t.Fatalf("%v", got)
	}
}

func TestStrangers(t *testing.T) {
	n := newNode(t, ByFakeVariable)
	none := func(arbiter.PodUID) bool { return false }
	n.openers(none) // the first look is a full one
	stranger := n.shell("", "exec 3<DEVICE; echo up; exec cat")
	n.observer.lastFullMs = 0 // the next full look, without waiting for it
	if got := n.openers(none); !slices.Equal(got, []int{stranger.Process.Pid}) {
		t.Fatalf("%v", got)
	}
	if got := n.openers(none); len(got) != 1 {
		t.Fatal("a stranger that was found was forgotten at the next look")
	}
	n.observer.Tolerated = []string{"cat", "busybox", "coreutils"}
	n.observer.lastFullMs = 0
	waitUntil(t, func() bool { return len(n.openers(none)) == 0 })
}

func TestAPodThatStartsProcessesAllTheTimeHidesNobodyElse(t *testing.T) {
	n := newNode(t, ByFakeVariable)
	n.shell(uidA, "echo up; while :; do /bin/true; done")
	holder := n.shell(uidA, "exec 3<DEVICE; echo up; read _")
	for range 20 {
		if got := n.openers(everybody); !slices.Equal(got, []int{holder.Process.Pid}) {
			t.Fatalf("%v", got)
		}
	}
}

func TestAProcessOfTwoPodsIsAStranger(t *testing.T) {
	n := newNode(t, func(procRoot string, pid int) (arbiter.PodUID, error) {
		uid, err := ByFakeVariable(procRoot, pid)
		if uid != "" {
			return "", ErrIdentity
		}
		return uid, err
	})
	n.openers(everybody)
	holder := n.shell(uidA, "exec 3<DEVICE; echo up; read _")
	observed := n.observer.Observe(everybody, n.devices)
	if got := observed.GPUs[0].Openers; got.Problem != "" || len(got.Processes) != 1 || got.Processes[0].Pid != holder.Process.Pid || got.Processes[0].Pod != "" {
		t.Fatalf("%+v", got)
	}
}

func TestWhatTheDriverDoesNotKnowIsAProblem(t *testing.T) {
	n := newNode(t, ByFakeVariable)
	for name, change := range map[string]func(gpu *fakenvml.GPU){
		"an error":              func(gpu *fakenvml.GPU) { gpu.Processes = fakenvml.Processes{Error: "GPU_IS_LOST"} },
		"pid 0":                 func(gpu *fakenvml.GPU) { gpu.Processes = fakenvml.Processes{Pids: []int{0}} },
		"another pid namespace": func(gpu *fakenvml.GPU) { gpu.Processes = fakenvml.Processes{Pids: []int{4_194_305}} },
	} {
		n.describe(change)
		if got := n.observer.Observe(everybody, n.devices).GPUs[0].Listed; got.Problem == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	n.describe(func(gpu *fakenvml.GPU) { gpu.Used = fakenvml.Bytes{Error: "NOT_SUPPORTED"} })
	if got := n.observer.Observe(everybody, n.devices).GPUs[0].Used; got.Problem != "NOT_SUPPORTED" {
		t.Errorf("%+v", got)
	}
}

func TestSelfTest(t *testing.T) {
	n := newNode(t, ByFakeVariable)
	holder := func(script string) *exec.Cmd {
		return exec.Command("sh", "-c", strings.ReplaceAll(script, "DEVICE", n.driver.File(0)))
	}
	if err := SelfTest(n.driver, "GPU-fake-0", holder("exec 3<DEVICE; echo held; exec cat"), func(int) {}); err != nil {
		t.Fatal(err)
	}
	if got := n.openers(everybody); len(got) != 0 {
		t.Fatalf("the self-test left %v", got)
	}
	if err := SelfTest(n.driver, "GPU-fake-0", holder("echo no driver >&2; exit 1"), func(int) {}); err == nil || !strings.Contains(err.Error(), "no driver") {
		t.Fatal(err)
	}
	n.describe(func(gpu *fakenvml.GPU) { gpu.Processes = fakenvml.Processes{Error: "GPU_IS_LOST"} })
	if err := SelfTest(n.driver, "GPU-fake-0", holder("exec 3<DEVICE; echo held; exec cat"), func(int) {}); err == nil {
		t.Fatal("an error passed for a list")
	}
}

// TestTheKernelsIdentity puts a process in a cgroup such as the kubelet makes.
func TestTheKernelsIdentity(t *testing.T) {
	root := ""
	for _, candidate := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(candidate, "cgroup.controllers")); err == nil {
			root = candidate
			break
		}
	}
	top := filepath.Join(root, fmt.Sprintf("firepool-test-%d-kubepods.slice", os.Getpid()))
	folder := filepath.Join(top, "kubepods-burstable-pod"+uidAUnder+".slice")
	if root == "" || os.MkdirAll(folder, 0o755) != nil {
		t.Skip("no cgroup v2 that this user may write to")
	}
	t.Cleanup(func() { _ = os.Remove(folder); _ = os.Remove(top) })
	n := newNode(t, ByCgroup)
	holder := n.shell("", "echo up; read line; exec 3<DEVICE; exec cat") // started outside of the pod, as a runtime does
	n.openers(everybody)
	if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(strconv.Itoa(holder.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	process := n.observer.Observe(everybody, n.devices).Pods.ByPod[uidA]
	if len(process) != 1 || process[0].Pid != holder.Process.Pid {
		t.Fatalf("%+v", process)
	}
	if err := Kill("/proc", process[0]); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
}

func waitUntil(t *testing.T, condition func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatal("it did not happen within 30 s")
}

// BenchmarkObserve says what a look costs on the machine at hand; the agent takes one every 20 ms while somebody waits.
func BenchmarkObserve(b *testing.B) {
	for _, look := range []string{"full", "quick"} {
		b.Run(look, func(b *testing.B) {
			n := newNode(b, ByCgroup)
			n.observer.Observe(everybody, n.devices)
			processes, err := n.observer.list(nil)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if look == "full" {
					n.observer.lastFullMs = 0
				}
				n.observer.Observe(everybody, n.devices)
			}
			b.ReportMetric(float64(len(processes)), "processes")
		})
	}
}
