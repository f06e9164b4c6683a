package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestWithTheKernelsIdentity is a node as in a cluster, but for its devices: pods in cgroups such as the kubelet makes, under a user
// without rights, that reach the agent through a volume that its CSI driver has mounted.
func TestWithTheKernelsIdentity(t *testing.T) {
	cgroups, err := cgroupFolder()
	if err != nil {
		t.Skip("needs root and a cgroup v2 to write to:", err)
	}
	w := newWorld(t, 2)
	w.identity = "cgroup"
	// The test binary and the devices have to be in reach of the pods' user.
	for _, folder := range []string{w.folder, w.devices()} {
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	endpoint := filepath.Join(w.folder, "csi.sock")
	w.start("", "-csi-endpoint="+endpoint, "-node-name=node-1").settled()
	connection, err := grpc.NewClient("unix://"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	node := spec.NewNodeClient(connection)
	a, socketA := w.joinByVolume(node, cgroups)
	b, socketB := w.joinByVolume(node, cgroups)

	held := a.seatsOver(socketA, "1", 1)
	a.job("trap '' TERM; exec 3<DEVICE0; echo up; exec sleep 600")
	b.tell(order{Socket: socketA, Method: "GET", Path: "/v1/seats"}) // even if it could reach the other's socket
	if err := b.hear(nil); err == nil || !strings.Contains(err.Error(), "IdentityMismatch") {
		t.Fatal(err)
	}
	b.tell(order{Socket: socketB, Method: "POST", Path: "/v1/seats", Body: map[string]any{"v": 1, "requestId": "1", "leaseEpoch": 1, "gpus": 2, "waitMs": 120_000}})
	unpublish := &spec.NodeUnpublishVolumeRequest{VolumeId: "csi-" + a.uid, TargetPath: w.target(a.uid)}
	if _, err := node.NodeUnpublishVolume(context.Background(), unpublish); err != nil { // the pod is deleted, and its job stays
		t.Fatal(err)
	}
	got := b.granted()
	if len(got.UUIDs) != 2 || got.SeatEpoch <= held.SeatEpoch || len(w.openers(0)) > 0 {
		t.Fatalf("%+v with %v on it", got, w.openers(0))
	}
}

func (w *world) target(uid string) string {
	return filepath.Join(w.folder, "pods-of-kubelet", "pods", uid, "volumes", "kubernetes.io~csi", "seat", "mount")
}

// joinByVolume publishes a volume, and starts the pod's runner in its cgroup. The socket is the one in the mount.
func (w *world) joinByVolume(node spec.NodeClient, cgroups string) (*pod, string) {
	w.t.Helper()
	w.pods++
	p := &pod{w: w, uid: fmt.Sprintf("%08x-0000-4000-8000-%012d", w.number, w.pods)}
	target := w.target(p.uid)
	_, err := node.NodePublishVolume(context.Background(), &spec.NodePublishVolumeRequest{
		VolumeId: "csi-" + p.uid, TargetPath: target, Readonly: true,
		VolumeCapability: &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}}},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.uid": p.uid, "csi.storage.k8s.io/pod.name": "p",
			"csi.storage.k8s.io/pod.namespace": "ns", "tenant": "t",
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	// A container has the volume at a short path; the path here is longer than a socket's may be.
	short := filepath.Join(w.folder, "v"+strconv.Itoa(w.pods))
	if err := os.Mkdir(short, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := unix.Mount(target, short, "", unix.MS_BIND, ""); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Unmount(short, unix.MNT_DETACH) })
	cgroup := filepath.Join(cgroups, fmt.Sprintf("firepool-test-%08x.slice", w.number), "kubepods-pod"+strings.ReplaceAll(p.uid, "-", "_")+".slice")
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		w.waitUntil("the cgroup is empty", func() bool { return errors.Is(removed(cgroup), os.ErrNotExist) })
		_ = os.Remove(filepath.Dir(cgroup))
	})
	p.begin(&syscall.Credential{Uid: 65534, Gid: 65534})
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(p.command.Process.Pid)), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return p, filepath.Join(short, "agent.sock")
}

func removed(folder string) error {
	_ = os.Remove(folder)
	_, err := os.Stat(folder)
	return err
}

func (p *pod) seatsOver(socket, id string, gpus int) grant {
	p.w.t.Helper()
	p.tell(order{Socket: socket, Method: "POST", Path: "/v1/seats", Body: map[string]any{"v": 1, "requestId": id, "leaseEpoch": 1, "gpus": gpus, "waitMs": 120_000}})
	return p.granted()
}

// cgroupFolder is where cgroup v2 is, if this user may write there.
func cgroupFolder() (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("not root")
	}
	for _, folder := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(folder, "cgroup.controllers")); err != nil {
			continue
		}
		probe := filepath.Join(folder, fmt.Sprintf("firepool-probe-%d", os.Getpid()))
		if err := os.Mkdir(probe, 0o755); err != nil {
			return "", err
		}
		return folder, os.Remove(probe)
	}
	return "", errors.New("no cgroup v2")
}
