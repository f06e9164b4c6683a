package measure

import (
	"errors"
	"testing"
)

const (
	uidA      = "0f8fad5b-d9cb-469f-a165-70867728950e"
	uidAUnder = "0f8fad5b_d9cb_469f_a165_70867728950e"
	uidBUnder = "7c9e6679_7425_40de_944b_e07fc1f90ae7"
	container = "4c01db0b339c0a1f4b8a8d2a7e1a9a4f0c4e8a5e5b1c1d5a6f0e9d8c7b6a5948"
)

// The shapes are those that the kubelet's two cgroup drivers and the common runtimes write; the ids are made up.
func TestPodOf(t *testing.T) {
	texts := map[string]struct{ text, want string }{
		"v2, systemd driver, burstable":  {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidAUnder + ".slice/cri-containerd-" + container + ".scope\n", uidA},
		"v2, systemd driver, guaranteed": {"0::/kubepods.slice/kubepods-pod" + uidAUnder + ".slice/crio-" + container + ".scope\n", uidA},
		"v2, cgroupfs driver":            {"0::/kubepods/besteffort/pod" + uidA + "/" + container + "\n", uidA},
		"v2, cgroupfs, guaranteed":       {"0::/kubepods/pod" + uidA + "/" + container + "\n", uidA},
		"v2, a cluster in a container":   {"0::/system.slice/docker-" + container + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + uidAUnder + ".slice/cri-containerd-" + container + ".scope\n", uidA},
		"v2, seen from another pod":      {"0::/../../kubepods-burstable-pod" + uidAUnder + ".slice/cri-containerd-" + container + ".scope\n", uidA},
		"v1, cgroupfs driver": {"12:devices:/kubepods/burstable/pod" + uidA + "/" + container + "\n11:memory:/kubepods/burstable/pod" + uidA + "/" + container +
			"\n1:name=systemd:/kubepods/burstable/pod" + uidA + "/" + container + "\n", uidA},
		"v1 and v2 at once, only one of them used": {"9:name=systemd:/\n4:memory:/kubepods.slice/kubepods-pod" + uidAUnder + ".slice/" + container + "\n0::/\n", uidA},
		"v1, containerd's own naming":              {"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod" + uidAUnder + ".slice:cri-containerd:" + container + "\n", uidA},
		"a folder below, named by the pod":         {"0::/kubepods.slice/kubepods-pod" + uidAUnder + ".slice/x.scope/kubepods.slice/kubepods-pod" + uidBUnder + ".slice\n", uidA},
		"a service of the node":                    {"0::/system.slice/nvidia-persistenced.service\n", ""},
		"a login session":                          {"0::/user.slice/user-1000.slice/session-3.scope\n", ""},
		"a folder that only looks like one":        {"0::/user.slice/pod" + uidA + "/x\n", ""},
		"a static pod, whose UID is a hash":        {"0::/kubepods.slice/kubepods-pod0123456789abcdef0123456789abcdef.slice/x.scope\n", ""},
		"nothing":                                  {"", ""},
	}
	for name, c := range texts {
		got, err := PodOf(c.text)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %q, %v; wanted %q", name, got, err, c.want)
		}
	}
	two := "11:memory:/kubepods/pod" + uidA + "/x\n10:devices:/kubepods.slice/kubepods-pod" + uidBUnder + ".slice/x\n"
	if _, err := PodOf(two); !errors.Is(err, ErrIdentity) {
		t.Errorf("two pods: %v", err)
	}
}

func TestValidUID(t *testing.T) {
	for uid, want := range map[string]bool{uidA: true, uidAUnder: false, "../../etc": false, "": false, uidA + "/x": false} {
		if ValidUID(uid) != want {
			t.Errorf("%q", uid)
		}
	}
}

func TestParseStatus(t *testing.T) {
	rest := " 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 12345 1 1"
	for name, text := range map[string]string{
		"sleep":     "77 (sleep) S" + rest,
		"a) S (b":   "77 (a) S (b) S" + rest,
		") Z 0 0 0": "77 () Z 0 0 0) S" + rest,
	} {
		got, err := parseStatus(text)
		if err != nil || got.name != name || got.state != 'S' || got.threads != 3 || got.startMs != 123450 {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	if _, err := parseStatus("77 (x"); err == nil {
		t.Error("a cut text was read")
	}
	for text, want := range map[string]bool{"1 (x) Z": false, "1 (x) X": true} {
		got, err := parseStatus(text + rest)
		if err != nil || got.dead() != want {
			t.Errorf("%s: dead is %v", text, got.dead())
		}
	}
}
