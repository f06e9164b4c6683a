// Package csi mounts each pod's own socket folder into it, as an inline ephemeral volume: the one way in which a pod under Pod Security
// `restricted` can be given a socket of the node.
package csi

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/measure"
)

// DriverName in the CSIDriver object and in pods' volumes.
const DriverName = "node.firepool.dev"

// What the kubelet tells about the pod (podInfoOnMount). It overrides attributes of the same name that a pod gives.
const (
	keyEphemeral = "csi.storage.k8s.io/ephemeral"
	keyUID       = "csi.storage.k8s.io/pod.uid"
	keyName      = "csi.storage.k8s.io/pod.name"
	keyNamespace = "csi.storage.k8s.io/pod.namespace"
	// keyTenant is the volume's own attribute; who may create pods with this volume may choose it.
	keyTenant = "tenant"
)

// maxName: a tenant's name is a metric's label and a line of the agent's file.
const maxName = 253

// Pods opens and closes pods' sockets.
type Pods interface {
	Open(e arbiter.PodJoined) error
	Close(uid arbiter.PodUID) error
	PodFolder(uid arbiter.PodUID) string
}

// Mounts binds folders.
type Mounts interface {
	Bind(source, target string) error
	Unbind(target string) error
}

// Driver is the identity and the node service of CSI. There is no controller: nothing is stored.
type Driver struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer
	NodeName string
	Version  string
	Pods     Pods
	Mounts   Mounts
	Log      *slog.Logger
}

// GetPluginInfo names the driver.
func (d *Driver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: DriverName, VendorVersion: d.Version}, nil
}

// GetPluginCapabilities: none beyond the node service.
func (d *Driver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{}, nil
}

// Probe: the driver is ready when it serves.
func (d *Driver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

// NodeGetCapabilities: none; publishing needs no staging.
func (d *Driver) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	return &spec.NodeGetCapabilitiesResponse{}, nil
}

// NodeGetInfo names the node.
func (d *Driver) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: d.NodeName}, nil
}

// NodePublishVolume opens the pod's socket and binds its folder into the pod. It may come again for the same pod.
func (d *Driver) NodePublishVolume(_ context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	about := r.GetVolumeContext()
	target := r.GetTargetPath()
	uid := about[keyUID]
	switch {
	case r.GetVolumeId() == "" || target == "":
		return nil, status.Error(codes.InvalidArgument, "a volume id and a target path are needed")
	case r.GetVolumeCapability().GetMount() == nil:
		return nil, status.Error(codes.InvalidArgument, "the volume is a folder with a socket: mount it")
	case about[keyEphemeral] != "true":
		return nil, status.Error(codes.InvalidArgument, "the driver serves inline ephemeral volumes only")
	case !measure.ValidUID(uid):
		return nil, status.Error(codes.InvalidArgument, "the kubelet did not tell the pod's UID: the CSIDriver needs podInfoOnMount")
	case podOfTarget(target) != uid:
		return nil, status.Errorf(codes.InvalidArgument, "the target path is not of pod %s", uid)
	}
	tenant := about[keyTenant]
	if tenant == "" {
		tenant = about[keyNamespace]
	}
	if len(tenant) > maxName {
		return nil, status.Errorf(codes.InvalidArgument, "a tenant's name has at most %d bytes", maxName)
	}
	joined := arbiter.PodJoined{UID: arbiter.PodUID(uid), Namespace: about[keyNamespace], Name: about[keyName], Tenant: tenant}
	if err := d.Pods.Open(joined); err != nil {
		return nil, status.Errorf(codes.Unavailable, "open the socket of pod %s: %v", uid, err)
	}
	if err := d.Mounts.Bind(d.Pods.PodFolder(joined.UID), target); err != nil {
		return nil, status.Errorf(codes.Internal, "bind the socket's folder: %v", err)
	}
	d.Log.Debug("published", "pod", uid, "namespace", joined.Namespace, "name", joined.Name, "tenant", tenant)
	return &spec.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume ends what the pod has. It may come again, and for pods that are not known.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	target := r.GetTargetPath()
	uid := podOfTarget(target)
	if r.GetVolumeId() == "" || uid == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume id and a target path below a pod's folder are needed")
	}
	if err := d.Mounts.Unbind(target); err != nil {
		return nil, status.Errorf(codes.Internal, "unmount: %v", err)
	}
	if err := os.Remove(target); err != nil && !os.IsNotExist(err) {
		return nil, status.Errorf(codes.Internal, "remove the mount point: %v", err)
	}
	if err := d.Pods.Close(arbiter.PodUID(uid)); err != nil {
		return nil, status.Errorf(codes.Unavailable, "close the socket of pod %s: %v", uid, err)
	}
	d.Log.Info("unpublished", "pod", uid)
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// podOfTarget reads the kubelet's own path, .../pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount: no pod can choose it.
func podOfTarget(target string) string {
	parts := strings.Split(filepath.Clean(target), string(filepath.Separator))
	for i := len(parts) - 4; i > 0; i-- {
		if parts[i-1] == "pods" && parts[i+1] == "volumes" && measure.ValidUID(parts[i]) {
			return parts[i]
		}
	}
	return ""
}
