package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"firepool/node-agent/agent"
	"firepool/node-agent/brokertoken"
	"firepool/node-agent/csi"
	"firepool/node-agent/journal"
	"firepool/node-agent/kube"
	"firepool/node-agent/measure"
	"firepool/node-agent/measure/fakenvml"
	"firepool/node-agent/measure/nvidia"
	"firepool/node-agent/server"
)

const (
	procRoot       = "/proc"
	operatorSocket = "operator.sock"
	stateFile      = "state.json"
)

// hardware is a driver with its device files.
type hardware struct {
	driver interface {
		measure.Driver
		agent.XidSource
	}
	file   func(minor int) string
	folder string // every device file's path begins with it
}

func open(o options) (hardware, error) {
	if o.device == "nvidia" {
		driver, err := nvidia.Open()
		return hardware{driver, nvidia.File, nvidia.DeviceFolder}, err
	}
	if err := fakenvml.Create(o.fakeFolder, o.fakeGPUs); err != nil {
		return hardware{}, err
	}
	// The kernel shows paths without links.
	folder, err := filepath.EvalSymlinks(o.fakeFolder)
	if err != nil {
		return hardware{}, err
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return hardware{}, err
	}
	driver := fakenvml.New(folder)
	return hardware{driver, driver.File, folder + "/"}, nil
}

func openFake(o options) (*os.File, error) {
	driver := fakenvml.New(o.fakeFolder)
	devices, err := driver.Devices()
	if err != nil {
		return nil, err
	}
	for _, device := range devices {
		if device.UUID == o.heldUUID {
			return os.Open(driver.File(device.Minor))
		}
	}
	return nil, fmt.Errorf("no fake device %q", o.heldUUID)
}

func observer(o options, h hardware) (*measure.Observer, error) {
	devices, err := h.driver.Devices()
	if err != nil {
		return nil, err
	}
	found := &measure.Observer{
		ProcRoot: procRoot, Identify: measure.ByCgroup, Driver: h.driver, Files: map[measure.FileID]string{},
		Folder: h.folder, Tolerated: strings.Split(o.tolerated, ","), SkipUnreadable: o.device == "fake",
	}
	if o.identity == "fake" {
		found.Identify = measure.ByFakeVariable
	}
	for _, device := range devices {
		id, err := measure.IdentityOf(h.file(device.Minor))
		if err != nil {
			return nil, fmt.Errorf("the device file of %s: %w", device.UUID, err)
		}
		found.Files[id] = device.UUID
	}
	return found, nil
}

// visible names the GPUs whose device files are in the process's own file system: a pod cannot make one itself.
func visible(files map[measure.FileID]string, h hardware) func(pid int) ([]string, error) {
	return func(pid int) ([]string, error) {
		devices, err := h.driver.Devices()
		if err != nil {
			return nil, err
		}
		uuids := []string{}
		for _, device := range devices {
			id, err := measure.IdentityOf(filepath.Join(procRoot, strconv.Itoa(pid), "root", h.file(device.Minor)))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if uuid, known := files[id]; known {
				uuids = append(uuids, uuid)
			}
		}
		return uuids, nil
	}
}

// serve runs the agent until the context ends.
func serve(ctx context.Context, o options, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, folder := range []string{o.stateFolder, o.podsFolder} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	h, err := open(o)
	if err != nil {
		return err
	}
	watch, err := observer(o, h)
	if err != nil {
		return err
	}
	bootID, err := measure.BootID()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	reported := make(chan struct{}, 1)
	var checkpoint measure.Checkpoint
	if o.cudaCheckpoint != "" {
		// Found out now, and not by a job that it would cost.
		if _, err := exec.LookPath(o.cudaCheckpoint); err != nil {
			return fmt.Errorf("-cuda-checkpoint: %w; put NVIDIA's program there, or leave it out", err)
		}
		checkpoint = measure.CheckpointBy(o.cudaCheckpoint)
	}
	a, err := agent.New(agent.Config{
		Checkpoint: checkpoint, Driver: h.driver, Xids: h.driver, Observer: watch, Reported: reported, Log: log,
		Journal: &journal.Journal{Path: filepath.Join(o.stateFolder, stateFile), BootID: bootID},
		Holder: func(uuid string) *exec.Cmd {
			command := exec.Command(self, "hold", "-device="+o.device, "-fake-dir="+o.fakeFolder, "-uuid="+uuid)
			command.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+uuid)
			return command
		},
	})
	if err != nil {
		return err
	}
	pods := &server.Pods{Agent: a, Folder: o.podsFolder, ProcRoot: procRoot, Identify: watch.Identify, Visible: visible(watch.Files, h), Log: log}
	stopped := make(chan error, 1)
	go func() { stopped <- a.Run(ctx) }()
	closeAll, err := listen(o, pods, log)
	if err != nil {
		cancel()
		return errors.Join(err, <-stopped)
	}
	if o.kube != "" {
		client, err := kube.NewClient(o.kube, o.kubeCredentials)
		if err != nil {
			cancel()
			closeAll()
			return errors.Join(err, <-stopped)
		}
		go kube.NewReporter(client, o.nodeName, log).Run(ctx, a.Status, reported)
	}
	log.Info("ready", "version", Version, "gpus", len(watch.Files), "device", o.device)
	err = <-stopped
	closeAll()
	return err
}

// listen opens everything that others reach the agent by, the pods' sockets first: their holders wait to release.
func listen(o options, pods *server.Pods, log *slog.Logger) (func(), error) {
	var closers []func()
	closeAll := func() {
		for _, closer := range closers {
			closer()
		}
	}
	closers = append(closers, pods.Shutdown)
	if err := pods.Resume(); err != nil {
		return closeAll, err
	}
	operator, err := listenUnix(filepath.Join(o.stateFolder, operatorSocket))
	if err != nil {
		closeAll()
		return nil, err
	}
	closers = append(closers, serveHTTP(operator, server.OperatorHandler(pods), log))
	if o.listen != "" {
		listener, err := net.Listen("tcp", o.listen)
		if err != nil {
			closeAll()
			return nil, err
		}
		closers = append(closers, serveHTTP(listener, server.NodeHandler(pods.Agent), log))
	}
	if o.seatsListen != "" {
		keys, err := brokertoken.ParseKeys(o.brokerKeys)
		if err != nil {
			closeAll()
			return nil, err
		}
		listener, err := net.Listen("tcp", o.seatsListen)
		if err != nil {
			closeAll()
			return nil, err
		}
		closers = append(closers, serveHTTP(listener, pods.ByToken(server.Brokers{Keys: keys, LogsFolder: o.podLogsFolder}), log))
	}
	if o.csiEndpoint != "" {
		driver := &csi.Driver{NodeName: o.nodeName, Version: Version, Pods: pods, Mounts: csi.KernelMounts{}, Log: log}
		grpcServer, err := driver.Listen(o.csiEndpoint)
		if err != nil {
			closeAll()
			return nil, err
		}
		closers = append(closers, grpcServer.Stop)
	}
	return closeAll, nil
}

func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o600)
}

func serveHTTP(listener net.Listener, handler http.Handler, log *slog.Logger) func() {
	one := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	go func() {
		if err := one.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serve", "address", listener.Addr().String(), "error", err)
		}
	}()
	return func() { _ = one.Close() }
}

// clearGPU asks the agent of this node.
func clearGPU(o options, uuid string) error {
	client := operatorClient(o.stateFolder)
	response, err := client.Post("http://operator/v1/gpus/"+uuid+"/clear", "application/json", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return nil
}

func operatorClient(stateFolder string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(stateFolder, operatorSocket))
	}}}
}

var _ csi.Pods = (*server.Pods)(nil)
