package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

// draDriver answers the kubelet's Dynamic Resource Allocation API: it has nothing to prepare, and says which devices a claim has.
type draDriver struct {
	name string
}

func (d draDriver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var result kubeletplugin.PrepareResult
		for _, device := range claim.Status.Allocation.Devices.Results {
			if device.Driver == d.name {
				result.Devices = append(result.Devices, kubeletplugin.Device{
					Requests:   []string{device.Request},
					PoolName:   device.Pool,
					DeviceName: device.Device,
				})
			}
		}
		prepared[claim.UID] = result
	}
	return prepared, nil
}

func (draDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	unprepared := map[types.UID]error{}
	for _, claim := range claims {
		unprepared[claim.UID] = nil
	}
	return unprepared, nil
}

func (draDriver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, "fake-gpu:", message, err)
}

// serveDRA publishes the devices as a ResourceSlice of the node and answers the kubelet until ctx ends.
func (g fakeGPU) serveDRA(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", g.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(g.kubeletRoot, "plugins", g.driver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	plugin, err := kubeletplugin.Start(ctx, draDriver{name: g.driver},
		kubeletplugin.DriverName(g.driver),
		kubeletplugin.NodeName(g.node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(g.kubeletRoot, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data),
	)
	if err != nil {
		return err
	}
	defer plugin.Stop()
	var devices []resource.Device
	for i := range g.count {
		devices = append(devices, resource.Device{
			Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resource.QualifiedName]resource.DeviceAttribute{
				"uuid": {StringValue: ptr.To(fmt.Sprintf("GPU-%s-%d", g.node, i))},
			},
		})
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	if err := plugin.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{g.node: pool}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
