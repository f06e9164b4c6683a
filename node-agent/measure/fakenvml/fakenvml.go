// Package fakenvml is a test double of a GPU driver and its devices. It is no GPU: a device is an ordinary file that test
// processes open, and what the driver says is written in a JSON file, with every fault that a real one was seen to have.
package fakenvml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"firepool/node-agent/arbiter"
)

// FileName of the description, in the folder of the fake devices.
const FileName = "nvml.json"

// Node is the description. It is read anew for each question, so a test changes it by writing it (rename a new file over it).
type Node struct {
	V    int   `json:"v"`
	GPUs []GPU `json:"gpus"`
}

// GPU is one fake device, its file is nvidia<minor> beside the description.
type GPU struct {
	UUID  string `json:"uuid"`
	Minor int    `json:"minor"`
	// Used: {"bytes": n} or {"error": text}. BytesPerOpener is added for each process that has the file open.
	Used           Bytes  `json:"used"`
	BytesPerOpener uint64 `json:"bytesPerOpener,omitempty"`
	// Processes: what the driver lists.
	Processes Processes `json:"processes"`
	Xids      []Xid     `json:"xids,omitempty"`
}

// Bytes, or an error such as NOT_SUPPORTED (shown as N/A by the tools) or GPU_IS_LOST.
type Bytes struct {
	Bytes uint64 `json:"bytes"`
	Error string `json:"error,omitempty"`
}

// Processes: those that have the file open (the truth, when nothing else is said), or exactly these pids, or an error.
type Processes struct {
	Openers bool   `json:"openers,omitempty"`
	Pids    []int  `json:"pids,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Xid is told once for each id.
type Xid struct {
	ID   int `json:"id"`
	Code int `json:"code"`
}

// Driver reads the folder. It satisfies measure.Driver.
type Driver struct {
	Folder string
	told   map[string]bool

	mutex    sync.Mutex
	lookedAt time.Time
	open     map[string][]int
}

// lookAgain: one measurement asks twice for each device, and gets one look at the node's processes for all of them.
const lookAgain = 10 * time.Millisecond

// New takes the folder of the description and the device files.
func New(folder string) *Driver { return &Driver{Folder: folder, told: map[string]bool{}} }

// Create lays down count healthy devices of 4 MiB used, with 100 MiB for each opener, unless the folder has a description already.
func Create(folder string, count int) error {
	if _, err := os.Stat(filepath.Join(folder, FileName)); err == nil {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	node := Node{V: 1}
	for i := range count {
		node.GPUs = append(node.GPUs, GPU{UUID: fmt.Sprintf("GPU-fake-%d", i), Minor: i, Used: Bytes{Bytes: 4 << 20}, BytesPerOpener: 100 << 20, Processes: Processes{Openers: true}})
		if err := os.WriteFile(filepath.Join(folder, "nvidia"+strconv.Itoa(i)), []byte("a fake device\n"), 0o666); err != nil {
			return err
		}
	}
	return Write(folder, node)
}

// Write replaces the description at once.
func Write(folder string, node Node) error {
	text, err := json.MarshalIndent(node, "", "  ")
	if err != nil {
		return err
	}
	next := filepath.Join(folder, FileName+".next")
	if err := os.WriteFile(next, text, 0o644); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(folder, FileName))
}

// Read the description.
func Read(folder string) (Node, error) {
	var node Node
	text, err := os.ReadFile(filepath.Join(folder, FileName))
	if err != nil {
		return node, err
	}
	if err := json.Unmarshal(text, &node); err != nil {
		return node, fmt.Errorf("%s: %w", FileName, err)
	}
	if node.V != 1 {
		return node, fmt.Errorf("%s has version %d, 1 is known", FileName, node.V)
	}
	return node, nil
}

func (d *Driver) gpu(uuid string) (GPU, error) {
	node, err := Read(d.Folder)
	if err != nil {
		return GPU{}, err
	}
	for _, gpu := range node.GPUs {
		if gpu.UUID == uuid {
			return gpu, nil
		}
	}
	return GPU{}, fmt.Errorf("GPU_IS_LOST: no %s in %s", uuid, FileName)
}

// File of the device.
func (d *Driver) File(minor int) string {
	return filepath.Join(d.Folder, "nvidia"+strconv.Itoa(minor))
}

// Devices that the description has now.
func (d *Driver) Devices() ([]arbiter.Device, error) {
	node, err := Read(d.Folder)
	if err != nil {
		return nil, err
	}
	var devices []arbiter.Device
	for _, gpu := range node.GPUs {
		devices = append(devices, arbiter.Device{UUID: gpu.UUID, Minor: gpu.Minor})
	}
	return devices, nil
}

// Used is what the description says, and more for each opener.
func (d *Driver) Used(uuid string) (uint64, error) {
	gpu, err := d.gpu(uuid)
	if err != nil {
		return 0, err
	}
	if gpu.Used.Error != "" {
		return 0, errors.New(gpu.Used.Error)
	}
	if gpu.BytesPerOpener == 0 {
		return gpu.Used.Bytes, nil
	}
	openers, err := d.Openers(gpu.Minor)
	return gpu.Used.Bytes + gpu.BytesPerOpener*uint64(len(openers)), err
}

// Pids as described.
func (d *Driver) Pids(uuid string) ([]int, error) {
	gpu, err := d.gpu(uuid)
	switch {
	case err != nil:
		return nil, err
	case gpu.Processes.Error != "":
		return nil, errors.New(gpu.Processes.Error)
	case gpu.Processes.Openers:
		return d.Openers(gpu.Minor)
	}
	return gpu.Processes.Pids, nil
}

// Openers reads the kernel's own view, by the path alone: on purpose not the way in which the agent measures.
func (d *Driver) Openers(minor int) ([]int, error) {
	folder, err := filepath.EvalSymlinks(d.Folder)
	if err != nil {
		return nil, err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if time.Since(d.lookedAt) > lookAgain {
		d.open, d.lookedAt = openFiles(folder), time.Now()
	}
	return slices.Clone(d.open[filepath.Join(folder, "nvidia"+strconv.Itoa(minor))]), nil
}

// openFiles maps each file below the folder to the processes that have it open.
func openFiles(folder string) map[string][]int {
	found := map[string][]int{}
	for _, process := range names("/proc") {
		pid, err := strconv.Atoi(process)
		if err != nil {
			continue
		}
		descriptors := filepath.Join("/proc", process, "fd")
		for _, descriptor := range names(descriptors) {
			target, err := os.Readlink(filepath.Join(descriptors, descriptor))
			if err == nil && strings.HasPrefix(target, folder) && !slices.Contains(found[target], pid) {
				found[target] = append(found[target], pid)
			}
		}
	}
	return found
}

// names in a folder; none of one that cannot be read.
func names(folder string) []string {
	open, err := os.Open(folder)
	if err != nil {
		return nil
	}
	defer open.Close()
	found, _ := open.Readdirnames(-1)
	return found
}

// WaitXid blocks until the description has an XID that was not told yet.
func (d *Driver) WaitXid(ctx context.Context) (uuid string, code int, err error) {
	for {
		node, err := Read(d.Folder)
		if err == nil {
			for _, gpu := range node.GPUs {
				for _, xid := range gpu.Xids {
					name := gpu.UUID + "/" + strconv.Itoa(xid.ID)
					if !d.told[name] {
						d.told[name] = true
						return gpu.UUID, xid.Code, nil
					}
				}
			}
		}
		select {
		case <-ctx.Done():
			return "", 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
