package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const lookAgain = 500 * time.Millisecond

// devicePlugin speaks the kubelet's device plugin API, version v1beta1.
type devicePlugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	gpu fakeGPU
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch says which devices there are, once: they never fall ill.
func (p *devicePlugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	answer := &deviceplugin.ListAndWatchResponse{}
	for i := range p.gpu.count {
		answer.Devices = append(answer.Devices, &deviceplugin.Device{ID: fmt.Sprintf("GPU-%s-%d", p.gpu.node, i), Health: deviceplugin.Healthy})
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate tells a container which devices it has, as NVIDIA's plugin does.
func (p *devicePlugin) Allocate(_ context.Context, request *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	answer := &deviceplugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		visible := strings.Join(container.DevicesIds, ",")
		answer.ContainerResponses = append(answer.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": visible},
		})
	}
	return answer, nil
}

// serveDevicePlugin registers with the kubelet, and again whenever that starts anew: its start-up removes all sockets.
func (g fakeGPU) serveDevicePlugin(ctx context.Context) error {
	for {
		if err := g.registerAndServe(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "fake-gpu: again, because", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAgain):
		}
	}
}

// registerAndServe returns when the socket is gone.
func (g fakeGPU) registerAndServe(ctx context.Context) error {
	socket := filepath.Join(deviceplugin.DevicePluginPath, "fake-gpu.sock")
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	deviceplugin.RegisterDevicePluginServer(server, &devicePlugin{gpu: g})
	go func() { _ = server.Serve(listener) }()

	connection, err := grpc.NewClient("unix://"+deviceplugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = deviceplugin.NewRegistrationClient(connection).Register(ctx, &deviceplugin.RegisterRequest{
		Version:      deviceplugin.Version,
		Endpoint:     filepath.Base(socket),
		ResourceName: g.resource,
	})
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAgain):
			_, err = os.Stat(socket)
		}
	}
	return err
}
