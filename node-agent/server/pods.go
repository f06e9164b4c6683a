// Package server is how pods, operators and monitoring talk to the agent.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"firepool/node-agent/agent"
	"firepool/node-agent/arbiter"
	"firepool/node-agent/measure"
)

// SocketName in each pod's folder.
const SocketName = "agent.sock"

// Pods keeps one socket for each pod, in a folder of its own that is mounted into it.
type Pods struct {
	Agent    *agent.Agent
	Folder   string
	ProcRoot string
	Identify measure.Identify
	// Visible names the GPUs whose device files the process sees: the kernel's word for the pod's seat set.
	Visible func(pid int) ([]string, error)
	Log     *slog.Logger

	looking sync.Mutex // for the other end of a connection
	mutex   sync.Mutex // of what follows
	servers map[arbiter.PodUID]*http.Server
}

// PodFolder is what is mounted into the pod.
func (p *Pods) PodFolder(uid arbiter.PodUID) string { return filepath.Join(p.Folder, string(uid)) }

// Open registers the pod and listens on its socket. Again for the same pod it changes nothing.
func (p *Pods) Open(e arbiter.PodJoined) error {
	if !measure.ValidUID(string(e.UID)) {
		return fmt.Errorf("%q is no pod UID", e.UID)
	}
	if err := p.Agent.Join(e); err != nil {
		return err
	}
	return p.listen(e.UID)
}

// Resume listens again for every pod that the agent knows, after a start.
func (p *Pods) Resume() error {
	for _, pod := range p.Agent.Pods() {
		if pod.NoVolume {
			continue
		}
		if err := p.listen(pod.UID); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pods) listen(uid arbiter.PodUID) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.servers == nil {
		p.servers = map[arbiter.PodUID]*http.Server{}
	}
	if p.servers[uid] != nil {
		return nil
	}
	folder := p.PodFolder(uid)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	path := filepath.Join(folder, SocketName)
	// A socket left by an earlier agent cannot be bound again.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	// The pod's users have ids of their own; who they are is asked of the kernel, not of the file's mode.
	if err := os.Chmod(path, 0o666); err != nil {
		return err
	}
	server := &http.Server{
		Handler: p.handler(p.ofSocket(uid)), ConnContext: withPeer,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	p.servers[uid] = server
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			p.Log.Error("serve a pod", "pod", uid, "error", err)
		}
	}()
	return nil
}

// Close ends what the pod has, and its socket.
func (p *Pods) Close(uid arbiter.PodUID) error {
	if !measure.ValidUID(string(uid)) {
		return fmt.Errorf("%q is no pod UID", uid)
	}
	if err := p.Agent.Leave(uid); err != nil {
		return err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if server := p.servers[uid]; server != nil {
		_ = server.Close()
		delete(p.servers, uid)
	}
	return os.RemoveAll(p.PodFolder(uid))
}

// Shutdown closes every socket. Seats stay with their holders.
func (p *Pods) Shutdown() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, server := range p.servers {
		_ = server.Close()
	}
}

// caller of one request: the pod, by the kernel, and the process that asks.
type caller struct {
	pod arbiter.PodUID
	pid int
}

type peerKey struct{}

// peer is who has connected, by the kernel.
type peer struct {
	pid int
	err error
}

func withPeer(ctx context.Context, connection net.Conn) context.Context {
	var found peer
	unixConnection, ok := connection.(*net.UnixConn)
	if !ok {
		return context.WithValue(ctx, peerKey{}, peer{err: errors.New("not a unix socket")})
	}
	raw, err := unixConnection.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			credentials, failure := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
			if failure != nil {
				found.err = failure
				return
			}
			found.pid = int(credentials.Pid)
		})
	}
	if err != nil {
		found.err = err
	}
	return context.WithValue(ctx, peerKey{}, found)
}

// ofSocket: the caller's cgroup must be the pod's whose socket this is.
func (p *Pods) ofSocket(uid arbiter.PodUID) func(r *http.Request) (caller, error) {
	return func(r *http.Request) (caller, error) {
		asks, ok := r.Context().Value(peerKey{}).(peer)
		if !ok || asks.err != nil || asks.pid <= 0 {
			return caller{}, mismatch(fmt.Sprintf("the kernel does not name the caller: %v", asks.err), "the agent must run in the node's pid namespace")
		}
		pod, err := p.Identify(p.ProcRoot, asks.pid)
		if err != nil {
			return caller{}, mismatch("the caller's pod cannot be read: "+err.Error(), "ask again")
		}
		if pod != uid {
			return caller{}, mismatch("the caller is not of the pod whose socket this is", "use the socket of the caller's own volume")
		}
		return caller{pod, asks.pid}, nil
	}
}

func mismatch(message, remedy string) arbiter.Problem {
	return arbiter.Problem{Code: arbiter.IdentityMismatch, Message: message, Remedy: remedy}
}
