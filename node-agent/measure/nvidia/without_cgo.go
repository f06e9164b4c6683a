//go:build !cgo

// Package nvidia asks NVIDIA's driver. This build cannot: its libraries are loaded through cgo.
package nvidia

import (
	"context"
	"errors"
	"strconv"

	"firepool/node-agent/arbiter"
)

var errWithoutCgo = errors.New("this firepool-node was built without cgo and cannot load NVML: build it with CGO_ENABLED=1")

// DeviceFolder is where the driver's device files are.
const DeviceFolder = "/dev/nvidia"

// File of the device.
func File(minor int) string { return DeviceFolder + strconv.Itoa(minor) }

// Driver cannot be opened in this build.
type Driver struct{}

// Open fails.
func Open() (*Driver, error) { return nil, errWithoutCgo }

func (*Driver) Devices() ([]arbiter.Device, error)           { return nil, errWithoutCgo }
func (*Driver) Used(string) (uint64, error)                  { return 0, errWithoutCgo }
func (*Driver) Pids(string) ([]int, error)                   { return nil, errWithoutCgo }
func (*Driver) WaitXid(context.Context) (string, int, error) { return "", 0, errWithoutCgo }

// OpenContext fails.
func OpenContext() error { return errWithoutCgo }
