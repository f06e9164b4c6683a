// Command firepool-node is the seat arbiter of one GPU node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"firepool/node-agent/kube"
	"firepool/node-agent/measure"
	"firepool/node-agent/measure/nvidia"
)

// Version is set when the image is built.
var Version = "development"

const usage = `firepool-node grants the GPUs of one node to pods, and again only when they were measured empty.

  firepool-node [flags]                run the agent (README.md has the API)
  firepool-node clear [flags] UUID     an operator's word that a quarantined GPU is well; it is verified again
  firepool-node version

Flags:
`

type options struct {
	device, identity        string
	fakeFolder              string
	fakeGPUs                int
	stateFolder, podsFolder string
	csiEndpoint, listen     string
	nodeName, tolerated     string
	heldUUID                string
	verbose                 bool
	seatsListen, brokerKeys string
	podLogsFolder           string
	kube, kubeCredentials   string
	cudaCheckpoint          string
}

func flags(o *options, stderr io.Writer) *flag.FlagSet {
	set := flag.NewFlagSet("firepool-node", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.Usage = func() { fmt.Fprint(stderr, usage); set.PrintDefaults() }
	set.StringVar(&o.device, "device", "nvidia", "nvidia, or fake: files that stand for GPUs, for tests")
	set.StringVar(&o.identity, "identity", "cgroup", "how a process's pod is known: cgroup (the kernel's word), or fake: its variable "+measure.FakeIdentityVariable+", which it chooses itself; only with -device=fake")
	set.StringVar(&o.fakeFolder, "fake-dir", "", "folder of the fake devices and of their description nvml.json")
	set.IntVar(&o.fakeGPUs, "fake-gpus", 1, "fake devices to make when the folder has no description")
	set.StringVar(&o.stateFolder, "state-dir", "/var/lib/firepool-node", "folder of the agent's file and of operator.sock")
	set.StringVar(&o.podsFolder, "pods-dir", "/run/firepool-node/pods", "folder of the pods' sockets")
	set.StringVar(&o.csiEndpoint, "csi-endpoint", "", "path of the CSI driver's socket; empty: no CSI")
	set.StringVar(&o.listen, "listen", ":9808", "address of /healthz, /metrics and /status; empty: none")
	set.StringVar(&o.seatsListen, "seats-listen", "", "address of the pods' API for pods without the volume, who are known by connection and token; empty: none")
	set.StringVar(&o.brokerKeys, "broker-keys", os.Getenv("FIREPOOL_BROKER_KEYS"), "NAMESPACE=KEY,...: public keys of the brokers whose tokens count, by the namespace of their pods")
	set.StringVar(&o.podLogsFolder, "pod-logs-dir", "/var/log/pods", "the kubelet's folder of logs, which names the pods of the node; for -seats-listen")
	set.StringVar(&o.kube, "kube", "", "API server that is told of pods to delete, failed devices and quarantines: "+kube.InCluster+", or its URL; empty: none")
	set.StringVar(&o.kubeCredentials, "kube-credentials", kube.CredentialsFolder, "folder with token and ca.crt, for -kube")
	set.StringVar(&o.cudaCheckpoint, "cuda-checkpoint", "", "NVIDIA's program that takes a process off its GPUs and puts it back; empty: no job can be suspended")
	set.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "the node's name, for the kubelet")
	set.StringVar(&o.tolerated, "tolerate", "nvidia-persistenced,nvidia-device-plugin,gpu-kubelet-plugin,gpu-feature-discovery", "executables that may have a GPU open without a context on it, by name, with commas")
	set.BoolVar(&o.verbose, "verbose", false, "log every release, grant and answer too, for whoever measures a handover")
	set.StringVar(&o.heldUUID, "uuid", "", "for the self-test's own process")
	return set
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit code: 0 after a clean end, 1 after a failure, 2 for a usage error.
func run(arguments []string, stdout, stderr io.Writer) int {
	command := ""
	if len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-") {
		command, arguments = arguments[0], arguments[1:]
	}
	var o options
	set := flags(&o, stderr)
	if err := set.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	err := o.check(command, set.NArg())
	if err != nil {
		fmt.Fprintln(stderr, "firepool-node:", err)
		return 2
	}
	switch command {
	case "":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		level := slog.LevelInfo
		if o.verbose {
			level = slog.LevelDebug
		}
		err = serve(ctx, o, slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level})))
	case "hold":
		err = hold(o, os.Stdin, stdout)
	case "clear":
		err = clearGPU(o, set.Arg(0))
	case "version":
		fmt.Fprintln(stdout, Version)
	}
	if err != nil {
		fmt.Fprintln(stderr, "firepool-node:", err)
		return 1
	}
	return 0
}

func (o options) check(command string, rest int) error {
	wanted := map[string]int{"": 0, "hold": 0, "clear": 1, "version": 0}
	count, known := wanted[command]
	switch {
	case !known:
		return fmt.Errorf("no command %q; see firepool-node -help", command)
	case rest != count:
		return fmt.Errorf("%d arguments where %d are expected; see firepool-node -help", rest, count)
	case !slices.Contains([]string{"nvidia", "fake"}, o.device):
		return fmt.Errorf("-device is nvidia or fake, not %q", o.device)
	case !slices.Contains([]string{"cgroup", "fake"}, o.identity):
		return fmt.Errorf("-identity is cgroup or fake, not %q", o.identity)
	case o.identity == "fake" && o.device != "fake":
		return errors.New("-identity=fake lets every process claim any pod; it is for -device=fake only")
	case o.device == "fake" && o.fakeFolder == "":
		return errors.New("-device=fake needs -fake-dir")
	case o.csiEndpoint != "" && o.nodeName == "":
		return errors.New("-csi-endpoint needs -node-name")
	case o.kube != "" && o.nodeName == "":
		return errors.New("-kube needs -node-name")
	}
	return nil
}

// hold is the self-test's process: it opens the device, says so, and ends when its standard input does.
func hold(o options, stdin io.Reader, stdout io.Writer) error {
	if o.device == "fake" {
		file, err := openFake(o)
		if err != nil {
			return err
		}
		defer file.Close()
	} else if err := nvidia.OpenContext(); err != nil {
		return err
	}
	fmt.Fprintln(stdout, measure.HeldLine)
	_, err := io.Copy(io.Discard, stdin)
	return err
}
