package csi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"firepool/node-agent/arbiter"
)

const uid = "0f8fad5b-d9cb-469f-a165-70867728950e"

// sockets stands for the agent's pods: folders with a socket that answers.
type sockets struct {
	t       *testing.T
	folder  string
	mutex   sync.Mutex
	open    map[arbiter.PodUID]arbiter.PodJoined
	refuses error
}

func (s *sockets) PodFolder(uid arbiter.PodUID) string { return filepath.Join(s.folder, string(uid)) }

func (s *sockets) Open(e arbiter.PodJoined) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, again := s.open[e.UID]; again || s.refuses != nil {
		return s.refuses
	}
	s.open[e.UID] = e
	if err := os.MkdirAll(s.PodFolder(e.UID), 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("unix", filepath.Join(s.PodFolder(e.UID), "agent.sock"))
	if err != nil {
		return err
	}
	s.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(connection, "up")
			_ = connection.Close()
		}
	}()
	return nil
}

func (s *sockets) Close(uid arbiter.PodUID) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.open, uid)
	return os.RemoveAll(s.PodFolder(uid))
}

// noMounts stands for the kernel where the test is not root.
type noMounts struct{}

func (noMounts) Bind(_, target string) error { return os.MkdirAll(target, 0o750) }
func (noMounts) Unbind(string) error         { return nil }

func serve(t *testing.T, mounts Mounts) (spec.NodeClient, spec.IdentityClient, *sockets, string) {
	t.Helper()
	folder, err := os.MkdirTemp("", "fpc") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	pods := &sockets{t: t, folder: filepath.Join(folder, "pods"), open: map[arbiter.PodUID]arbiter.PodJoined{}}
	driver := &Driver{NodeName: "node-1", Version: "test", Pods: pods, Mounts: mounts, Log: slog.New(slog.DiscardHandler)}
	endpoint := filepath.Join(folder, "csi.sock")
	server, err := driver.Listen(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	connection, err := grpc.NewClient("unix://"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	target := filepath.Join(folder, "kubelet", "pods", uid, "volumes", "kubernetes.io~csi", "seat", "mount")
	return spec.NewNodeClient(connection), spec.NewIdentityClient(connection), pods, target
}

func publication(target string) *spec.NodePublishVolumeRequest {
	return &spec.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: target, Readonly: true,
		VolumeCapability: &spec.VolumeCapability{
			AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
			AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		VolumeContext: map[string]string{keyEphemeral: "true", keyUID: uid, keyName: "p", keyNamespace: "ns"},
	}
}

func TestAPodsSocketIsMountedAndUnmounted(t *testing.T) {
	root := os.Geteuid() == 0
	var mounts Mounts = noMounts{}
	if root {
		mounts = KernelMounts{}
	}
	node, identity, pods, target := serve(t, mounts)
	t.Cleanup(func() { _ = mounts.Unbind(target) })
	ctx := context.Background()
	if info, err := identity.GetPluginInfo(ctx, &spec.GetPluginInfoRequest{}); err != nil || info.GetName() != DriverName {
		t.Fatalf("%v, %v", info, err)
	}
	if info, err := node.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{}); err != nil || info.GetNodeId() != "node-1" {
		t.Fatalf("%v, %v", info, err)
	}
	for range 2 { // the kubelet repeats itself
		if _, err := node.NodePublishVolume(ctx, publication(target)); err != nil {
			t.Fatal(err)
		}
	}
	if joined := pods.open[uid]; joined.Tenant != "ns" || joined.Name != "p" {
		t.Fatalf("%+v", joined)
	}
	if root {
		throughTheMount(t, target)
	} else {
		t.Log("not root: the mount itself is not tested")
	}
	for range 2 {
		if _, err := node.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}
	if mounted, err := isMounted(target); mounted || err != nil {
		t.Fatalf("still mounted: %v, %v", mounted, err)
	}
	if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) || len(pods.open) > 0 {
		t.Fatalf("%v, %v", err, pods.open)
	}
}

func throughTheMount(t *testing.T, target string) {
	t.Helper()
	folder, err := os.Open(target) // the whole path is longer than a socket's may be
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	connection, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/agent.sock", folder.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(connection); err != nil || string(text) != "up" {
		t.Fatalf("%q, %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o600); err == nil {
		t.Fatal("the pod can write into the agent's folder")
	}
}

func TestWhatIsNotAPodsOwnVolumeIsRefused(t *testing.T) {
	node, _, pods, target := serve(t, noMounts{})
	for name, change := range map[string]func(r *spec.NodePublishVolumeRequest){
		"no pod":           func(r *spec.NodePublishVolumeRequest) { delete(r.VolumeContext, keyUID) },
		"a path for a pod": func(r *spec.NodePublishVolumeRequest) { r.VolumeContext[keyUID] = "../../etc" },
		"another pod's UID": func(r *spec.NodePublishVolumeRequest) {
			r.VolumeContext[keyUID] = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
		},
		"a lasting volume":    func(r *spec.NodePublishVolumeRequest) { delete(r.VolumeContext, keyEphemeral) },
		"a block device":      func(r *spec.NodePublishVolumeRequest) { r.VolumeCapability.AccessType = nil },
		"no target":           func(r *spec.NodePublishVolumeRequest) { r.TargetPath = "" },
		"a tenant of 1 KiB":   func(r *spec.NodePublishVolumeRequest) { r.VolumeContext[keyTenant] = string(make([]byte, 1024)) },
		"a target like a pod": func(r *spec.NodePublishVolumeRequest) { r.TargetPath = "/pods/" + uid },
	} {
		request := publication(target)
		change(request)
		if _, err := node.NodePublishVolume(context.Background(), request); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	pods.refuses = errors.New("the node agent is stopping")
	if _, err := node.NodePublishVolume(context.Background(), publication(target)); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if len(pods.open) > 0 {
		t.Errorf("%v", pods.open)
	}
}
