package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"firepool/node-agent/agent"
	"firepool/node-agent/arbiter"
	"firepool/node-agent/failpoint"
	"firepool/node-agent/journal"
	"firepool/node-agent/measure"
	"firepool/node-agent/measure/fakenvml"
)

// The test binary is three programs: the tests, the agent (which a failpoint can kill), and a pod's runner.
const (
	roleVariable      = "FIREPOOL_NODE_TEST_ROLE"
	failpointVariable = "FIREPOOL_NODE_TEST_FAILPOINT" // name=file: killed when it passes the point while the file exists
	boundVariable     = "FIREPOOL_NODE_TEST_BOUND"     // set: every grant is over the journal's bound, and synced
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "agent":
		dieAt(os.Getenv(failpointVariable))
		if os.Getenv(boundVariable) != "" {
			journal.EpochsAhead = 0
		}
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	case "pod":
		os.Exit(runPod())
	case "job":
		os.Exit(runJob(os.Args[1]))
	}
	os.Exit(m.Run())
}

func dieAt(where string) {
	name, armed, found := strings.Cut(where, "=")
	if !found {
		return
	}
	failpoint.At = func(passed string) {
		if _, err := os.Stat(armed); passed == name && err == nil {
			time.Sleep(100 * time.Millisecond) // an answer that was given too early gets out, and is found
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

// world is a node: a folder of fake devices, one agent, some pods.
type world struct {
	t        *testing.T
	folder   string
	identity string
	agent    *exec.Cmd
	bounded  bool // each of its grants is synced
	log      *bytes.Buffer
	pods     int
	number   uint32 // tests share one kernel: pods of different worlds must not have the same UIDs
}

func newWorld(t *testing.T, gpus int) *world {
	t.Helper()
	t.Parallel()
	folder, err := os.MkdirTemp("", "fpn") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	w := &world{t: t, folder: folder, identity: "fake", number: rand.Uint32()}
	if err := fakenvml.Create(w.devices(), gpus); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) devices() string { return filepath.Join(w.folder, "dev") }
func (w *world) device(minor int) string {
	return filepath.Join(w.devices(), "nvidia"+strconv.Itoa(minor))
}

// describe changes what the driver says about the first GPU.
func (w *world) describe(change func(gpu *fakenvml.GPU)) {
	w.t.Helper()
	node, err := fakenvml.Read(w.devices())
	if err == nil {
		change(&node.GPUs[0])
		err = fakenvml.Write(w.devices(), node)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// start the agent and wait until it answers. where is a failpoint, or empty.
func (w *world) start(where string, more ...string) *world {
	w.t.Helper()
	w.launch(where, more...)
	w.waitUntil("the agent answers", func() bool { _, err := w.status(); return err == nil })
	return w
}

func (w *world) launch(where string, more ...string) {
	w.t.Helper()
	arguments := append([]string{"-device=fake", "-identity=" + w.identity, "-fake-dir=" + w.devices(), "-listen=",
		"-state-dir=" + filepath.Join(w.folder, "state"), "-pods-dir=" + filepath.Join(w.folder, "pods")}, more...)
	command := exec.Command(os.Args[0], arguments...)
	command.Env = append(os.Environ(), roleVariable+"=agent", failpointVariable+"="+where)
	if w.bounded {
		command.Env = append(command.Env, boundVariable+"=1")
	}
	w.log = &bytes.Buffer{}
	command.Stderr = &locked{buffer: w.log}
	if err := command.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.agent = command
	log := command.Stderr.(*locked)
	w.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if w.t.Failed() {
			w.t.Logf("the agent's log:\n%s", log)
		}
	})
}

type locked struct {
	mutex  sync.Mutex
	buffer *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.buffer.Write(p)
}

func (l *locked) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.buffer.String()
}

func (w *world) waitUntil(what string, condition func() bool) {
	w.t.Helper()
	for until := time.Now().Add(60 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}
	w.t.Fatalf("not within 60 s: %s", what)
}

func (w *world) operator(method, path string, body any, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(method, "http://operator"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	return call(operatorClient(filepath.Join(w.folder, "state")), request, answer)
}

func call(client *http.Client, request *http.Request, answer any) error {
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	defer client.CloseIdleConnections()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		var failed struct {
			Error struct{ Code, Message string }
		}
		_ = json.Unmarshal(text, &failed)
		return fmt.Errorf("%d %s: %s", response.StatusCode, failed.Error.Code, failed.Error.Message)
	}
	if answer == nil {
		return nil
	}
	if raw, ok := answer.(*string); ok {
		*raw = string(text)
		return nil
	}
	return json.Unmarshal(text, answer)
}

func (w *world) status() (agent.Status, error) {
	var status agent.Status
	err := w.operator("GET", "/status", nil, &status)
	return status, err
}

func (w *world) reported(kind string) bool {
	status, err := w.status()
	return err == nil && status.Counts[kind] > 0
}

// pod is a runner with its jobs.
type pod struct {
	w       *world
	uid     string
	command *exec.Cmd
	stdin   io.Writer
	lines   *bufio.Reader
}

func (w *world) join() *pod {
	w.t.Helper()
	w.pods++
	p := &pod{w: w, uid: fmt.Sprintf("%08x-0000-4000-8000-%012d", w.number, w.pods)}
	if err := w.operator("PUT", "/v1/pods/"+p.uid, map[string]any{"v": 1, "tenant": fmt.Sprint("tenant-", w.pods)}, nil); err != nil {
		w.t.Fatal(err)
	}
	p.begin()
	return p
}

// begin starts the pod's runner, as another user where one is given.
func (p *pod) begin(as ...*syscall.Credential) {
	p.w.t.Helper()
	program := os.Args[0]
	if len(as) > 0 {
		program = p.w.readable(program)
	}
	p.command = exec.Command(program)
	p.command.Env = append(os.Environ(), roleVariable+"=pod")
	if p.w.identity == "fake" {
		p.command.Env = append(p.command.Env, measure.FakeIdentityVariable+"="+p.uid)
	}
	p.command.Stderr = os.Stderr
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if len(as) > 0 {
		p.command.SysProcAttr.Credential = as[0]
	}
	stdin, err := p.command.StdinPipe()
	if err != nil {
		p.w.t.Fatal(err)
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		p.w.t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		p.w.t.Fatal(err)
	}
	// A process that started in the tick of a grant is taken for one of its job.
	time.Sleep(2 * arbiter.StartGrainMs * time.Millisecond)
	p.stdin, p.lines = stdin, bufio.NewReader(stdout)
	command := p.command
	p.w.t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // its jobs too: they are of its group
		_ = command.Wait()
	})
}

// readable is a copy of the program that every user can run: go test builds it in a folder of its own user's.
func (w *world) readable(program string) string {
	w.t.Helper()
	copied := filepath.Join(w.folder, "program")
	if _, err := os.Stat(copied); err == nil {
		return copied
	}
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(copied, text, 0o755)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return copied
}

type order struct {
	Socket string `json:"socket"`
	// Address of the agent's listener, instead of a socket, and the token.
	Address string `json:"address"`
	Token   string `json:"token"`
	Method  string `json:"method"`
	Path    string `json:"path"`
	Body    any    `json:"body"`
	// Shell starts a job instead, and answers with its first line.
	Shell string `json:"shell"`
}

type reply struct {
	Error string          `json:"error"`
	Body  json.RawMessage `json:"body"`
}

func (p *pod) tell(o order) {
	p.w.t.Helper()
	if o.Socket == "" {
		o.Socket = filepath.Join(p.w.folder, "pods", p.uid, "agent.sock")
	}
	text, err := json.Marshal(o)
	if err == nil {
		_, err = p.stdin.Write(append(text, '\n'))
	}
	if err != nil {
		p.w.t.Fatal(err)
	}
}

// hear the answer to the oldest order that was not answered; orders are carried out one after the other.
func (p *pod) hear(answer any) error {
	p.w.t.Helper()
	line, err := p.lines.ReadBytes('\n')
	if err != nil {
		p.w.t.Fatalf("the pod does not answer: %v", err)
	}
	var heard reply
	if err := json.Unmarshal(line, &heard); err != nil {
		p.w.t.Fatal(err)
	}
	if heard.Error != "" {
		return errors.New(heard.Error)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(heard.Body, answer)
}

type grant struct {
	SeatEpoch uint64   `json:"seatEpoch"`
	UUIDs     []string `json:"uuids"`
}

func (p *pod) wantSeats(id string, gpus int) {
	p.w.t.Helper()
	p.tell(order{Method: "POST", Path: "/v1/seats", Body: map[string]any{"v": 1, "requestId": id, "leaseEpoch": 1, "gpus": gpus, "waitMs": 120_000}})
}

func (p *pod) granted() grant {
	p.w.t.Helper()
	var got grant
	if err := p.hear(&got); err != nil {
		p.w.t.Fatal(err)
	}
	return got
}

func (p *pod) seats(id string, gpus int) grant {
	p.w.t.Helper()
	p.wantSeats(id, gpus)
	return p.granted()
}

func (p *pod) release(seatEpoch uint64) error {
	p.w.t.Helper()
	p.tell(order{Method: "POST", Path: "/v1/seats/release", Body: map[string]any{"v": 1, "seatEpoch": seatEpoch}})
	return p.hear(nil)
}

type standing struct {
	Held     *grant `json:"held"`
	ZeroVRAM string `json:"zeroVram"`
	Banned   string `json:"banned"`
	// Suspended is a seat epoch.
	Suspended uint64 `json:"suspended"`
}

func (p *pod) stand() standing {
	p.w.t.Helper()
	var got standing
	p.tell(order{Method: "GET", Path: "/v1/seats"})
	if err := p.hear(&got); err != nil {
		p.w.t.Fatal(err)
	}
	return got
}

// job runs a shell's script, which prints one line when it has what it wants. DEVICEn is a device's file.
func (p *pod) job(script string) {
	p.w.t.Helper()
	for minor := range 16 {
		script = strings.ReplaceAll(script, fmt.Sprintf("DEVICE%d", minor), p.w.device(minor))
	}
	p.tell(order{Shell: script})
	if err := p.hear(nil); err != nil {
		p.w.t.Fatal(err)
	}
}

// openers of a device, as the kernel shows them now.
func (w *world) openers(minor int) []int {
	w.t.Helper()
	driver := fakenvml.New(w.devices())
	pids, err := driver.Openers(minor)
	if err != nil {
		w.t.Fatal(err)
	}
	return pids
}

// runPod is the runner: one order a line.
func runPod() int {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return 0
		}
		var o order
		if err := json.Unmarshal(line, &o); err != nil {
			return 1
		}
		var answer reply
		if o.Shell != "" {
			err = startJob(o.Shell)
		} else {
			answer.Body, err = ask(o)
		}
		if err != nil {
			answer = reply{Error: err.Error()}
		}
		text, _ := json.Marshal(answer)
		fmt.Printf("%s\n", text)
	}
}

func startJob(script string) error {
	command := exec.Command("sh", "-c", script)
	stdout, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	_, err = bufio.NewReader(stdout).ReadString('\n')
	go func() { _ = command.Wait() }()
	return err
}

func ask(o order) (json.RawMessage, error) {
	text, err := json.Marshal(o.Body)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if o.Address != "" {
			return (&net.Dialer{}).DialContext(ctx, "tcp", o.Address)
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", o.Socket)
	}}}
	request, err := http.NewRequest(o.Method, "http://agent"+o.Path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if o.Token != "" {
		request.Header.Set("Authorization", "Bearer "+o.Token)
	}
	var answer json.RawMessage
	err = call(client, request, &answer)
	return answer, err
}

func (w *world) stop(signal syscall.Signal) {
	w.t.Helper()
	if err := w.agent.Process.Signal(signal); err != nil {
		w.t.Fatal(err)
	}
	_ = w.agent.Wait()
}

// killedAt waits until the agent has died at the point.
func (w *world) killedAt(point string) {
	w.t.Helper()
	hang := time.AfterFunc(60*time.Second, func() { _ = w.agent.Process.Kill() })
	_ = w.agent.Wait()
	if state := w.agent.ProcessState.String(); !hang.Stop() || !strings.Contains(state, "killed") {
		w.t.Fatalf("the agent was not killed at %s: %s", point, state)
	}
}

// settled waits until each GPU is measured, or held. Then the first one is granted first.
func (w *world) settled() *world {
	w.t.Helper()
	w.waitUntil("the seats are settled", func() bool {
		s, err := w.status()
		return err == nil && !slices.ContainsFunc(s.GPUs, func(g agent.GPUStatus) bool {
			return g.Phase != arbiter.Free && g.Phase != arbiter.Held
		})
	})
	return w
}

// maybeGranted is the answer, if the agent lived long enough to give one.
func (p *pod) maybeGranted() (grant, error) {
	var got grant
	err := p.hear(&got)
	return got, err
}
