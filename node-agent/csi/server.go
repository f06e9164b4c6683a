package csi

import (
	"errors"
	"io/fs"
	"net"
	"os"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Listen serves the driver on a unix socket at the path, replacing one that an earlier agent left. Stop the server to end it.
func (d *Driver) Listen(path string) (*grpc.Server, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	spec.RegisterIdentityServer(server, d)
	spec.RegisterNodeServer(server, d)
	go func() {
		if err := server.Serve(listener); err != nil {
			d.Log.Error("serve CSI", "error", err)
		}
	}()
	return server, nil
}
