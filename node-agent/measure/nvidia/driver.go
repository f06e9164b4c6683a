//go:build cgo

// Package nvidia asks NVIDIA's driver. Its libraries are loaded when the agent starts, so the agent is built without them; it
// was never run on a GPU.
package nvidia

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"firepool/node-agent/arbiter"
)

// DeviceFolder is where the driver's device files are.
const DeviceFolder = "/dev/nvidia"

// File of the device.
func File(minor int) string { return DeviceFolder + strconv.Itoa(minor) }

// Driver is NVML. Its calls may come from several goroutines.
type Driver struct {
	handles map[string]nvml.Device
	events  nvml.EventSet
}

func failed(what string, result nvml.Return) error {
	if result == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("NVML %s: %s", what, nvml.ErrorString(result))
}

// Open loads NVML and finds the GPUs.
func Open() (*Driver, error) { return openWith(nvml.New()) }

func openWith(library nvml.Interface) (*Driver, error) {
	if err := failed("init", library.Init()); err != nil {
		return nil, err
	}
	d := &Driver{handles: map[string]nvml.Device{}}
	count, result := library.DeviceGetCount()
	if err := failed("device count", result); err != nil {
		return nil, err
	}
	for i := range count {
		handle, result := library.DeviceGetHandleByIndex(i)
		if err := failed("device "+strconv.Itoa(i), result); err != nil {
			return nil, err
		}
		uuid, result := handle.GetUUID()
		if err := failed("UUID", result); err != nil {
			return nil, err
		}
		d.handles[uuid] = handle
	}
	return d, d.listen(library)
}

func (d *Driver) listen(library nvml.Interface) error {
	events, result := library.EventSetCreate()
	if err := failed("event set", result); err != nil {
		return err
	}
	d.events = events
	for uuid, handle := range d.handles {
		if err := failed("XID events of "+uuid, handle.RegisterEvents(nvml.EventTypeXidCriticalError, events)); err != nil {
			return err
		}
	}
	return nil
}

// Devices by their UUIDs and minor numbers. One in MIG mode is named unsupported: its instances would be the seats.
func (d *Driver) Devices() ([]arbiter.Device, error) {
	var devices []arbiter.Device
	for uuid, handle := range d.handles {
		minor, result := handle.GetMinorNumber()
		if err := failed("minor number of "+uuid, result); err != nil {
			return nil, err
		}
		device := arbiter.Device{UUID: uuid, Minor: minor}
		mode, _, result := handle.GetMigMode()
		if result == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
			device.Unsupported = "the GPU is in MIG mode, and this agent arbitrates whole GPUs; turn MIG off and start the agent again, or give its slices to pools with provider mig, which need no agent"
		} else if result != nvml.SUCCESS && result != nvml.ERROR_NOT_SUPPORTED {
			return nil, failed("MIG mode of "+uuid, result)
		}
		devices = append(devices, device)
	}
	return devices, nil
}

func (d *Driver) handle(uuid string) (nvml.Device, error) {
	handle, known := d.handles[uuid]
	if !known {
		return nil, errors.New("NVML: no GPU " + uuid)
	}
	return handle, nil
}

// Used memory. The second version of the call leaves out what the driver reserves.
func (d *Driver) Used(uuid string) (uint64, error) {
	handle, err := d.handle(uuid)
	if err != nil {
		return 0, err
	}
	memory, result := handle.GetMemoryInfo_v2()
	return memory.Used, failed("memory of "+uuid, result)
}

// Pids of compute, graphics and MPS processes. Each list must be known: one that is not supported may hide a process.
func (d *Driver) Pids(uuid string) ([]int, error) {
	handle, err := d.handle(uuid)
	if err != nil {
		return nil, err
	}
	lists := []struct {
		name string
		read func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"compute processes", handle.GetComputeRunningProcesses},
		{"graphics processes", handle.GetGraphicsRunningProcesses},
		{"MPS processes", handle.GetMPSComputeRunningProcesses},
	}
	var pids []int
	for _, list := range lists {
		found, result := list.read()
		if err := failed(list.name+" of "+uuid, result); err != nil {
			return nil, err
		}
		for _, process := range found {
			pids = append(pids, int(process.Pid))
		}
	}
	return pids, nil
}

// WaitXid blocks until a GPU reports an error. NVML does not hear of the context, so it looks up every second.
func (d *Driver) WaitXid(ctx context.Context) (string, int, error) {
	for ctx.Err() == nil {
		event, result := d.events.Wait(1000)
		if result == nvml.ERROR_TIMEOUT {
			continue
		}
		if err := failed("event", result); err != nil {
			return "", 0, err
		}
		uuid, result := event.Device.GetUUID()
		if err := failed("UUID of an event", result); err != nil {
			return "", 0, err
		}
		return uuid, int(event.EventData), nil
	}
	return "", 0, ctx.Err()
}
