package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"firepool/node-agent/arbiter"
)

// remote is a node whose pods have no volume: they reach the agent over TCP, with a token that the broker of namespace `jobs` signed.
type remote struct {
	*world
	address string
	key     ed25519.PrivateKey
}

func newRemote(t *testing.T) *remote {
	w := newWorld(t, 1)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &remote{w, freeAddress(t), private}
	r.begin(public)
	return r
}

func (r *remote) begin(key ed25519.PublicKey) {
	r.t.Helper()
	r.start("", "-seats-listen="+r.address, "-broker-keys=jobs="+base64.StdEncoding.EncodeToString(key), "-pod-logs-dir="+r.logs()).settled()
}

func (r *remote) logs() string { return filepath.Join(r.folder, "logs") }

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// pod pool-N of the namespace, which the kubelet has started, and nobody has told the agent of.
func (r *remote) pod(namespace string) *pod {
	r.t.Helper()
	r.pods++
	p := &pod{w: r.world, uid: fmt.Sprintf("%08x-0000-4000-8000-%012d", r.number, r.pods)}
	if err := os.MkdirAll(filepath.Join(r.logs(), fmt.Sprintf("%s_%s-g3_%s", namespace, r.name(), p.uid)), 0o755); err != nil {
		r.t.Fatal(err)
	}
	p.begin()
	return p
}

// name of the pod that was made last, as its broker calls it.
func (r *remote) name() string { return fmt.Sprintf("pool-%d", r.pods) }

func (r *remote) token(name string, life time.Duration) string {
	text, err := json.Marshal(map[string]any{"v": 1, "pod": name, "scope": "lease", "epoch": 1, "leaseId": "l", "expiresAtMs": time.Now().Add(life).UnixMilli()})
	if err != nil {
		r.t.Fatal(err)
	}
	head := base64.RawURLEncoding.EncodeToString(text)
	return head + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(r.key, []byte(head)))
}

// seats asks for the GPU.
func (r *remote) seats(p *pod, token string) (grant, error) {
	r.t.Helper()
	p.tell(order{Address: r.address, Token: token, Method: "POST", Path: "/v1/seats",
		Body: map[string]any{"v": 1, "requestId": "1", "leaseEpoch": 1, "gpus": 1, "waitMs": 60_000}})
	var got grant
	err := p.hear(&got)
	return got, err
}

func (r *remote) release(p *pod, token string, seatEpoch uint64) error {
	r.t.Helper()
	p.tell(order{Address: r.address, Token: token, Method: "POST", Path: "/v1/seats/release", Body: map[string]any{"v": 1, "seatEpoch": seatEpoch}})
	return p.hear(nil)
}

func wantRefusal(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("wanted a refusal with %q, got %v", part, err)
		}
	}
}

func TestAPodWithoutVolumeIsKnownByItsConnectionAndItsToken(t *testing.T) {
	r := newRemote(t)
	a := r.pod("jobs")
	nameOfA := r.name()
	b := r.pod("jobs")
	tokenOfA, tokenOfB := r.token(nameOfA, time.Minute), r.token(r.name(), time.Minute)

	// A token is worth nothing to another pod, whether or not its own pod is known.
	_, err := r.seats(a, tokenOfB)
	wantRefusal(t, err, "403 TokenRefused", "for another pod")
	held, err := r.seats(b, tokenOfB)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.seats(a, tokenOfB)
	wantRefusal(t, err, "403 TokenRefused", "for another pod")
	wantRefusal(t, r.release(a, tokenOfB, held.SeatEpoch), "403 TokenRefused", "for another pod")
	wantRefusal(t, r.release(a, tokenOfA, held.SeatEpoch), "403 IdentityMismatch")

	// A job of the pod has the connection, and no token.
	wantRefusal(t, r.release(b, "", held.SeatEpoch), "403 TokenRefused", "no token")
	if err := r.release(b, tokenOfB, held.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	if _, err := r.seats(a, tokenOfA); err != nil {
		t.Fatal(err)
	}
	status, err := r.status()
	if _, known := status.SeatMs["jobs"]; err != nil || !known {
		t.Fatalf("the namespace is not charged: %+v, %v", status, err)
	}
}

func TestATokenMustBeFreshWhenThePodIsSeenFirst(t *testing.T) {
	r := newRemote(t)
	a := r.pod("jobs")
	old := r.token(r.name(), -time.Second)
	_, err := r.seats(a, old)
	wantRefusal(t, err, "403 TokenRefused", "expired")
	held, err := r.seats(a, r.token(r.name(), time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	// A job may be longer than any token: now it only shows that the runner asks.
	if err := r.release(a, old, held.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	// An agent that starts again knows its pods.
	r.stop(syscall.SIGKILL)
	r.begin(r.key.Public().(ed25519.PublicKey))
	if _, err := r.seats(a, old); err != nil {
		t.Fatal(err)
	}
}

func TestNobodyElseIsServedOverTheNetwork(t *testing.T) {
	r := newRemote(t)
	elsewhere := r.pod("elsewhere")
	_, err := r.seats(elsewhere, r.token(r.name(), time.Minute))
	wantRefusal(t, err, "403 TokenRefused", "not one that a broker of the pod's namespace signed")
	_, err = ask(order{Address: r.address, Token: r.token(r.name(), time.Minute), Method: "GET", Path: "/v1/seats"}) // this process is in no pod
	wantRefusal(t, err, "403 IdentityMismatch")
	r.pods++
	unknown := &pod{w: r.world, uid: fmt.Sprintf("%08x-0000-4000-8000-%012d", r.number, r.pods)}
	unknown.begin()
	_, err = r.seats(unknown, r.token(r.name(), time.Minute))
	wantRefusal(t, err, "403 IdentityMismatch", "name is not known")
}

func TestAPodWithoutVolumeIsForgottenWhenItEnds(t *testing.T) {
	r := newRemote(t)
	a := r.pod("jobs")
	if _, err := r.seats(a, r.token(r.name(), time.Minute)); err != nil {
		t.Fatal(err)
	}
	a.job(holdDevice0)
	if err := syscall.Kill(-a.command.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.waitUntil("the seat is free and the pod forgotten", func() bool {
		s, err := r.status()
		return err == nil && s.Pods == 0 && s.GPUs[0].Phase == arbiter.Free
	})
}
