package measure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"firepool/node-agent/arbiter"
)

// Driver is what is asked of the GPU driver. An error is a value that is not known.
type Driver interface {
	Devices() ([]arbiter.Device, error)
	// Used memory in bytes, without what the driver itself keeps back.
	Used(uuid string) (uint64, error)
	// Pids of every process that has a context on the GPU.
	Pids(uuid string) ([]int, error)
}

const (
	// fullEveryMs: between two looks at all processes of the node, only those of pods with seats are looked at, and strangers that
	// were found on a device before. A node has thousands of processes; a stranger that computes is in the driver's list at every
	// look, so what comes late is only one that has a device open and does nothing with it.
	fullEveryMs = 10_000
	// maxRounds: a child that was born during a look has its parent's devices open, so processes are listed again. A pod that
	// starts them faster (a build does) is not waited for: it could keep an idle descriptor unseen, but no context and no memory.
	maxRounds = 3
	// settledMs: a container's runtime starts a process and then moves it into its pod. A process of this age stays where it is.
	settledMs = 5_000
)

// Observer measures a node. Only Ignore may be called from another goroutine.
type Observer struct {
	ProcRoot string
	Identify Identify
	Driver   Driver
	// Devices by their files, and the folder in which every one of them is.
	Files  map[FileID]string
	Folder string
	// Tolerated names executables of strangers that may have a device open, without a context on it.
	Tolerated []string
	// SkipUnreadable leaves other users' processes out: only for the fake device, where the agent need not be root.
	SkipUnreadable bool

	lastFullMs int64
	ignoring   sync.Mutex
	ignored    map[int]bool           // the self-test's own processes, and this one
	pods       map[key]arbiter.PodUID // of processes whose pod was looked up since the last full look
	suspects   map[key]bool           // strangers that the last full look found on a device
}

// key names one process: a pid is used again.
type key struct {
	pid     int
	startMs int64
}

func keyOf(p arbiter.Process) key { return key{p.Pid, p.StartMs} }

// Ignore a process of the agent's own while it has a device open.
func (o *Observer) Ignore(pid int, on bool) {
	o.ignoring.Lock()
	defer o.ignoring.Unlock()
	if o.ignored == nil {
		o.ignored = map[int]bool{}
	}
	o.ignored[pid] = on
	if !on {
		delete(o.ignored, pid)
	}
}

func (o *Observer) ignores(pid int) bool {
	o.ignoring.Lock()
	defer o.ignoring.Unlock()
	return pid == os.Getpid() || o.ignored[pid]
}

// Observe measures everything. ours says which pods are registered.
func (o *Observer) Observe(ours func(arbiter.PodUID) bool, devices []arbiter.Device) arbiter.Observed {
	observed := arbiter.Observed{AtMs: BootMs(), Pods: arbiter.PodsReading{ByPod: map[arbiter.PodUID][]arbiter.Process{}}}
	full := observed.AtMs-o.lastFullMs >= fullEveryMs
	listed, problems := o.listed(devices)
	processes, openers, err := o.scan(ours, full, listed)
	if err == nil && full {
		o.lastFullMs = observed.AtMs
	}
	if err != nil {
		observed.Pods.Problem = err.Error()
	}
	for _, p := range processes {
		if p.Pod != "" {
			observed.Pods.ByPod[p.Pod] = append(observed.Pods.ByPod[p.Pod], p)
		}
	}
	for _, device := range devices {
		reading := arbiter.Reading{UUID: device.UUID}
		if err != nil {
			reading.Openers.Problem = err.Error()
		}
		reading.Openers.Processes = openers[device.UUID]
		reading.Listed = o.resolve(listed[device.UUID], problems[device.UUID], processes)
		used, err := o.Driver.Used(device.UUID)
		reading.Used.Bytes = used
		if err != nil {
			reading.Used = arbiter.BytesReading{Problem: err.Error()}
		}
		observed.GPUs = append(observed.GPUs, reading)
	}
	return observed
}

func (o *Observer) listed(devices []arbiter.Device) (map[string][]int, map[string]error) {
	pids, problems := map[string][]int{}, map[string]error{}
	for _, device := range devices {
		pids[device.UUID], problems[device.UUID] = o.Driver.Pids(device.UUID)
	}
	return pids, problems
}

// resolve makes processes of the driver's pids. One that is no process of the node makes the whole list unknown: it may
// be counted in another pid namespace.
func (o *Observer) resolve(pids []int, problem error, processes map[int]arbiter.Process) arbiter.ProcessesReading {
	if problem != nil {
		return arbiter.ProcessesReading{Problem: problem.Error()}
	}
	var reading arbiter.ProcessesReading
	for _, pid := range pids {
		p, found := processes[pid]
		if !found {
			return arbiter.ProcessesReading{Problem: fmt.Sprintf("the list has pid %d, which is no process of this node", pid)}
		}
		if !o.ignores(pid) && !slices.ContainsFunc(reading.Processes, func(q arbiter.Process) bool { return q.Pid == pid }) {
			reading.Processes = append(reading.Processes, p)
		}
	}
	return reading
}

// scan lists processes and finds who has which device open.
func (o *Observer) scan(ours func(arbiter.PodUID) bool, full bool, listed map[string][]int) (map[int]arbiter.Process, map[string][]arbiter.Process, error) {
	if full || o.pods == nil {
		o.pods, o.suspects = map[key]arbiter.PodUID{}, map[key]bool{}
	}
	openers := map[string][]arbiter.Process{}
	var last map[int]arbiter.Process
	var firstProblem error
	looked := map[key]bool{}
	for range maxRounds {
		processes, err := o.list(last)
		if err != nil {
			return nil, nil, err
		}
		last = processes
		fresh := false
		for pid, p := range processes {
			member := p.Pod != "" && ours(p.Pod)
			if looked[keyOf(p)] || o.ignores(pid) || !member && !full && !o.suspects[keyOf(p)] {
				continue
			}
			looked[keyOf(p)] = true
			fresh = fresh || member
			if err := o.look(p, member, openers); err != nil && firstProblem == nil {
				firstProblem = fmt.Errorf("process %d (%s): %w", pid, p.Name, err)
			}
		}
		if !fresh {
			break
		}
		full = false
	}
	return last, openers, firstProblem
}

func (o *Observer) look(p arbiter.Process, member bool, openers map[string][]arbiter.Process) error {
	devices, err := opened(o.ProcRoot, p.Pid, o.Files, o.Folder)
	if gone(err) || err != nil && o.SkipUnreadable && os.IsPermission(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !member && len(devices) > 0 {
		if o.tolerates(p.Pid) {
			return nil
		}
		o.suspects[keyOf(p)] = true
	}
	for uuid := range devices {
		openers[uuid] = append(openers[uuid], p)
	}
	return nil
}

func (o *Observer) tolerates(pid int) bool {
	target, err := os.Readlink(filepath.Join(o.ProcRoot, strconv.Itoa(pid), "exe"))
	return err == nil && slices.Contains(o.Tolerated, filepath.Base(target))
}

// list is every living process of the node, by pid. Those of an earlier listing of the same look are not read again.
func (o *Observer) list(earlier map[int]arbiter.Process) (map[int]arbiter.Process, error) {
	pids, err := pidsIn(o.ProcRoot)
	if err != nil {
		return nil, err
	}
	found := make(map[int]arbiter.Process, len(pids))
	for _, pid := range pids {
		if p, known := earlier[pid]; known {
			found[pid] = p
			continue
		}
		now, err := readStatus(o.ProcRoot, pid)
		if gone(err) || err == nil && now.dead() {
			continue
		}
		if err != nil {
			return nil, err
		}
		p := arbiter.Process{Pid: pid, StartMs: now.startMs, Name: now.name}
		pod, known := o.pods[keyOf(p)]
		if !known {
			pod, err = o.Identify(o.ProcRoot, pid)
			if gone(err) {
				continue
			}
			if errors.Is(err, ErrIdentity) {
				// Nobody's: on a device it is a stranger, at every look, and the GPU is not granted beside it.
				pod, err = "", nil
				o.suspects[keyOf(p)] = true
			}
			if err != nil {
				return nil, fmt.Errorf("process %d (%s): %w", pid, now.name, err)
			}
			if pod != "" || BootMs()-p.StartMs > settledMs {
				o.pods[keyOf(p)] = pod
			}
		}
		p.Pod = pod
		found[pid] = p
	}
	return found, nil
}
