package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"firepool/node-agent/agent"
	"firepool/node-agent/arbiter"
)

// stub stands for the API server. It keeps what it was asked, and answers by the first of its rules that fits.
type stub struct {
	t     *testing.T
	now   time.Time
	log   bytes.Buffer
	asked []call
	rules []rule
	*Reporter
}

type call struct{ line, token, body string }

type rule struct {
	line   string // METHOD /path, or the beginning of it
	code   int
	answer string
}

func newStub(t *testing.T, rules ...rule) *stub {
	t.Helper()
	s := &stub{t: t, now: time.Unix(1_800_000_000, 0), rules: rules}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	folder := t.TempDir()
	s.write(folder, "first")
	client, err := NewClient(server.URL, folder)
	if err != nil {
		t.Fatal(err)
	}
	s.Reporter = NewReporter(client, "node-1", slog.New(slog.NewTextHandler(&s.log, nil)))
	s.Reporter.now = func() time.Time { return s.now }
	return s
}

func (s *stub) write(folder, token string) {
	if err := os.WriteFile(filepath.Join(folder, "token"), []byte(token+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.RequestURI()
	s.asked = append(s.asked, call{line, r.Header.Get("Authorization"), string(body)})
	for _, rule := range s.rules {
		if strings.HasPrefix(line, rule.line) {
			w.WriteHeader(rule.code)
			fmt.Fprint(w, rule.answer)
			return
		}
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "{}")
}

// shown looks, and returns what was asked since the last time.
func (s *stub) shown(status agent.Status) []string {
	s.t.Helper()
	before := len(s.asked)
	s.look(context.Background(), status)
	var lines []string
	for _, call := range s.asked[before:] {
		lines = append(lines, call.line)
	}
	return lines
}

func (s *stub) want(got []string, want ...string) {
	s.t.Helper()
	if !slices.Equal(got, want) {
		s.t.Fatalf("asked\n%s\nwanted\n%s\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), s.log.String())
	}
}

func (s *stub) bodyOf(line string, part ...string) map[string]any {
	s.t.Helper()
	at := slices.IndexFunc(s.asked, func(c call) bool { return c.line == line })
	if at < 0 {
		s.t.Fatalf("nothing asked %s", line)
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(s.asked[at].body), &body); err != nil {
		s.t.Fatal(err)
	}
	for _, name := range part {
		body = body[name].(map[string]any)
	}
	return body
}

const (
	deleteA   = "DELETE /api/v1/namespaces/jobs/pods/a"
	eventOfA  = "POST /api/v1/namespaces/jobs/events"
	nodeEvent = "POST /api/v1/namespaces/default/events"
	slicesOf  = "GET /apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode-1"
	rules1    = "/apis/resource.k8s.io/v1/devicetaintrules"
	rules2    = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
	rules3    = "/apis/resource.k8s.io/v1alpha3/devicetaintrules"
	rule0     = "/firepool-gpu-0a-b"
)

func podA(reason string) agent.Status {
	return agent.Status{Condemned: []agent.Condemned{{UID: "uid-a", Namespace: "jobs", Name: "a", Reason: reason, Detail: "a detail"}}}
}

func TestACondemnedPodIsDeletedOnceAndNoOtherOfItsName(t *testing.T) {
	s := newStub(t)
	s.want(s.shown(podA("UngrantedUse")), deleteA, eventOfA)
	if got := s.bodyOf(deleteA, "preconditions")["uid"]; got != "uid-a" {
		t.Fatalf("deleted whatever has the name: %v", got)
	}
	if got := s.bodyOf(eventOfA); got["reason"] != "UngrantedUse" || got["message"] != "a detail" {
		t.Fatalf("%+v", got)
	}
	s.want(s.shown(podA("UngrantedUse")))
	s.want(s.shown(agent.Status{})) // it has gone, and so has what is remembered of it
	if len(s.deleted) > 0 {
		t.Fatal("a pod that has gone is still remembered")
	}
	unnamed := podA("PodLost")
	unnamed.Condemned[0].Namespace = ""
	s.want(s.shown(unnamed))
}

func TestAPodThatIsNotThereAnyMoreIsDone(t *testing.T) {
	for _, code := range []int{404, 409} { // 409: another pod has its name by now
		s := newStub(t, rule{deleteA, code, `{"reason":"x","message":"y"}`})
		s.want(s.shown(podA("PodLost")), deleteA)
		s.want(s.shown(podA("PodLost")))
	}
}

func TestWhatIsRefusedIsTriedAgainLater(t *testing.T) {
	s := newStub(t, rule{deleteA, 403, `{"reason":"Forbidden","message":"pods is forbidden"}`})
	s.want(s.shown(podA("PodLost")), deleteA)
	if !strings.Contains(s.log.String(), "pods is forbidden") {
		t.Fatal(s.log.String())
	}
	s.want(s.shown(podA("PodLost")))
	s.now = s.now.Add(tryAgain)
	s.rules = nil
	s.write(s.client.folder, "second") // the kubelet replaces it
	s.want(s.shown(podA("PodLost")), deleteA, eventOfA)
	if first, last := s.asked[0].token, s.asked[len(s.asked)-1].token; first != "Bearer first" || last != "Bearer second" {
		t.Fatal(first, last)
	}
}

func gpu(q *arbiter.Quarantine) agent.Status {
	return agent.Status{GPUs: []agent.GPUStatus{{UUID: "GPU-0A-b", Quarantine: q}}}
}

const ofNode1 = `{"items":[
	{"spec":{"driver":"nic.example","pool":{"name":"node-1"},"devices":[{"name":"nic0","attributes":{"uuid":{"string":"N-1"}}}]}},
	{"spec":{"driver":"gpu.nvidia.com","pool":{"name":"node-1-gpus"},"devices":[
		{"name":"gpu-1","attributes":{"uuid":{"string":"GPU-other"},"index":{"int":1}}},
		{"name":"gpu-0","attributes":{"gpu.nvidia.com/uuid":{"string":"GPU-0A-b"}}}]}}]}`

var notFound = `404 page not found`

func TestAFailedDeviceIsTaintedUntilItIsCleared(t *testing.T) {
	failed := &arbiter.Quarantine{Reason: "xid", Detail: "XID 79", ByOperator: true}
	s := newStub(t, rule{"GET", 200, ofNode1}, rule{"POST " + rules1, 404, notFound}, rule{"DELETE", 404, notFound})
	// Whether an agent before this one has left a taint is not known.
	s.want(s.shown(gpu(nil)), "DELETE "+rules1+rule0, "DELETE "+rules2+rule0, "DELETE "+rules3+rule0)
	s.want(s.shown(gpu(nil)))
	s.want(s.shown(gpu(failed)), slicesOf, "POST "+rules1, "POST "+rules2, nodeEvent)
	spec := s.bodyOf("POST "+rules2, "spec")
	if got := fmt.Sprint(spec["deviceSelector"]); got != "map[device:gpu-0 driver:gpu.nvidia.com pool:node-1-gpus]" {
		t.Fatal(got)
	}
	if got := fmt.Sprint(spec["taint"]); got != "map[effect:NoSchedule key:node.firepool.dev/quarantined value:xid]" {
		t.Fatal(got)
	}
	s.want(s.shown(gpu(failed)))
	s.rules = nil
	s.want(s.shown(gpu(nil)), "DELETE "+rules2+rule0, nodeEvent)
	s.want(s.shown(gpu(nil)))
}

func TestWhatCannotBeTaintedIsSaid(t *testing.T) {
	failed := gpu(&arbiter.Quarantine{Reason: "reset", ByOperator: true})
	s := newStub(t, rule{"GET", 200, ofNode1}, rule{"POST /apis", 404, notFound})
	s.shown(failed)
	if !strings.Contains(s.log.String(), "DRADeviceTaintRules") {
		t.Fatal(s.log.String())
	}
	s = newStub(t, rule{"GET", 200, `{"items":[]}`})
	s.want(s.shown(failed), slicesOf, nodeEvent)
	if !strings.Contains(s.log.String(), "only devices of a DRA driver can be tainted") {
		t.Fatal(s.log.String())
	}
	s = newStub(t, rule{"GET", 200, ofNode1}, rule{"POST /apis", 409, `{"reason":"AlreadyExists","message":"x"}`})
	s.want(s.shown(failed), slicesOf, "POST "+rules1, nodeEvent)
	s.want(s.shown(failed))
}

func TestAQuarantineIsToldAsLongAsItLasts(t *testing.T) {
	dirty := &arbiter.Quarantine{Reason: "dirty", Detail: "process 7 (job) lives", AtMs: 1}
	s := newStub(t)
	s.tainted["GPU-0A-b"] = false
	s.want(s.shown(gpu(dirty)), nodeEvent) // it ends by itself: no taint
	body := s.bodyOf(nodeEvent)
	if body["message"] != "GPU GPU-0A-b: dirty: process 7 (job) lives" || body["reason"] != "SeatQuarantined" ||
		fmt.Sprint(body["involvedObject"]) != "map[apiVersion:v1 kind:Node name:node-1 uid:node-1]" {
		t.Fatalf("%+v", body)
	}
	s.want(s.shown(gpu(dirty)))
	again := *dirty
	again.AtMs = 2
	s.want(s.shown(gpu(&again)), nodeEvent)
	s.now = s.now.Add(tellAgain)
	s.want(s.shown(gpu(&again)), nodeEvent)
	s.want(s.shown(gpu(nil)), nodeEvent)
	s.want(s.shown(gpu(nil)))
}
