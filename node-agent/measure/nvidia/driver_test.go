//go:build cgo

package nvidia

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// answers stands for NVML: what each call says about the one GPU.
type answers struct {
	used                         uint64
	memory, mig, uuid            nvml.Return
	compute, graphics, mps       []nvml.ProcessInfo
	computeIs, graphicsIs, mpsIs nvml.Return
	migMode                      int
	events                       []nvml.Return
}

func (a *answers) open(t *testing.T) *Driver {
	t.Helper()
	device := &mock.Device{
		GetUUIDFunc:        func() (string, nvml.Return) { return "GPU-1", a.uuid },
		GetMinorNumberFunc: func() (int, nvml.Return) { return 3, nvml.SUCCESS },
		GetMigModeFunc:     func() (int, int, nvml.Return) { return a.migMode, 0, a.mig },
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Used: a.used, Reserved: 600 << 20}, a.memory
		},
		GetComputeRunningProcessesFunc:    func() ([]nvml.ProcessInfo, nvml.Return) { return a.compute, a.computeIs },
		GetGraphicsRunningProcessesFunc:   func() ([]nvml.ProcessInfo, nvml.Return) { return a.graphics, a.graphicsIs },
		GetMPSComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return a.mps, a.mpsIs },
		RegisterEventsFunc:                func(kinds uint64, _ nvml.EventSet) nvml.Return { return nvml.SUCCESS },
	}
	set := &mock.EventSet{WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
		next := nvml.ERROR_UNKNOWN
		if len(a.events) > 0 {
			next, a.events = a.events[0], a.events[1:]
		}
		return nvml.EventData{Device: device, EventType: nvml.EventTypeXidCriticalError, EventData: 79}, next
	}}
	driver, err := openWith(&mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return device, nvml.SUCCESS },
		EventSetCreateFunc:         func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS },
	})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

func TestWhatNVMLSays(t *testing.T) {
	a := &answers{used: 5 << 20, mig: nvml.ERROR_NOT_SUPPORTED, events: []nvml.Return{nvml.ERROR_TIMEOUT, nvml.SUCCESS},
		compute: []nvml.ProcessInfo{{Pid: 10}}, graphics: []nvml.ProcessInfo{{Pid: 11}}, mps: []nvml.ProcessInfo{{Pid: 12}, {Pid: 0}}}
	d := a.open(t)
	if devices, err := d.Devices(); err != nil || len(devices) != 1 || devices[0].UUID != "GPU-1" || devices[0].Minor != 3 || devices[0].Unsupported != "" {
		t.Errorf("%+v, %v", devices, err)
	}
	if used, err := d.Used("GPU-1"); err != nil || used != 5<<20 {
		t.Errorf("%d, %v: what the driver reserves is not in use", used, err)
	}
	if pids, err := d.Pids("GPU-1"); err != nil || !slices.Equal(pids, []int{10, 11, 12, 0}) {
		t.Errorf("%v, %v", pids, err)
	}
	if uuid, code, err := d.WaitXid(context.Background()); err != nil || uuid != "GPU-1" || code != 79 {
		t.Errorf("%s, %d, %v", uuid, code, err)
	}
	if _, _, err := d.WaitXid(context.Background()); err == nil {
		t.Error("an error of the event set was taken for an event")
	}
	a.migMode, a.mig = nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
	if devices, err := d.Devices(); err != nil || !strings.Contains(devices[0].Unsupported, "is in MIG mode") || !strings.Contains(devices[0].Unsupported, "turn MIG off") {
		t.Errorf("%+v, %v", devices, err)
	}
}

func TestWhatNVMLDoesNotKnowIsAnError(t *testing.T) {
	for name, change := range map[string]func(a *answers){
		"compute":  func(a *answers) { a.computeIs = nvml.ERROR_GPU_IS_LOST },
		"graphics": func(a *answers) { a.graphicsIs = nvml.ERROR_NOT_SUPPORTED },
		"MPS":      func(a *answers) { a.mpsIs = nvml.ERROR_NO_PERMISSION },
	} {
		a := &answers{}
		change(a)
		if pids, err := a.open(t).Pids("GPU-1"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, pids, err)
		}
	}
	a := &answers{memory: nvml.ERROR_NOT_SUPPORTED, mig: nvml.ERROR_UNKNOWN}
	d := a.open(t)
	if _, err := d.Used("GPU-1"); err == nil {
		t.Error("memory N/A was taken for zero")
	}
	if _, err := d.Devices(); err == nil {
		t.Error("a MIG mode that is not known was taken for off")
	}
	if _, err := d.Used("GPU-2"); err == nil {
		t.Error("a GPU that is not there has memory")
	}
	if _, err := d.Pids("GPU-2"); err == nil {
		t.Error("a GPU that is not there has a list")
	}
}

func TestWithoutADriverItSaysSo(t *testing.T) {
	if err := OpenContext(); err == nil {
		t.Skip("there is a GPU")
	} else if !strings.Contains(err.Error(), "cu") {
		t.Error(err)
	}
}
