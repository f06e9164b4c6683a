package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// fakeGPU is a number of devices that do not exist, on one node. What Kubernetes does with them is real: it counts them, assigns them
// to pods by name, and takes them back.
type fakeGPU struct {
	count int
	// node is the name of the Node that has them.
	node string
	// resource is what the device plugin calls them.
	resource string
	// driver is the name of the DRA driver.
	driver string
	// kubeletRoot is the kubelet's --root-dir, where a DRA driver has its sockets.
	kubeletRoot string
	// kubeconfig is a file by which the DRA driver publishes its devices.
	kubeconfig string
}

// runFakeGPU is the device plugin or the DRA driver, as the first argument says, until a signal ends it.
func runFakeGPU() error {
	if len(os.Args) != 2 {
		return errors.New("say device-plugin or dra")
	}
	count, err := strconv.Atoi(os.Getenv("FAKE_GPU_COUNT"))
	if err != nil {
		return fmt.Errorf("FAKE_GPU_COUNT: %w", err)
	}
	gpu := fakeGPU{
		count:       count,
		node:        os.Getenv("FAKE_GPU_NODE"),
		resource:    "nvidia.com/gpu",
		driver:      "gpu.firepool.test",
		kubeletRoot: os.Getenv("FAKE_GPU_KUBELET_ROOT"),
		kubeconfig:  os.Getenv("KUBECONFIG"),
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch os.Args[1] {
	case "device-plugin":
		return gpu.serveDevicePlugin(ctx)
	case "dra":
		return gpu.serveDRA(ctx)
	default:
		return fmt.Errorf("%q is neither device-plugin nor dra", os.Args[1])
	}
}
