package measure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"firepool/node-agent/arbiter"
)

// Identify says to which pod a process belongs: empty when to none.
type Identify func(procRoot string, pid int) (arbiter.PodUID, error)

const uidPattern = `([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`

var (
	// The kubelet's systemd driver: kubepods-burstable-pod<uid>.slice, below a parent of its own choice.
	slicePattern = regexp.MustCompile(`^(?:[a-z0-9]+-)*kubepods(?:-burstable|-besteffort)?-pod` + uidPattern + `\.slice(?::.*)?$`)
	// The kubelet's cgroupfs driver: kubepods/burstable/pod<uid>.
	folderPattern = regexp.MustCompile(`^pod` + uidPattern + `$`)
	uidExact      = regexp.MustCompile(`^` + uidPattern + `$`)
)

// ErrIdentity: the hierarchies of a process name different pods.
var ErrIdentity = errors.New("the cgroups of the process name different pods")

// ByCgroup is the production identity: a process cannot leave the cgroup that the kubelet's runtime put it in without
// rights over the cgroup file system, which a pod under Pod Security `restricted` has not.
func ByCgroup(procRoot string, pid int) (arbiter.PodUID, error) {
	text, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	return PodOf(string(text))
}

// PodOf reads the text of /proc/<pid>/cgroup, of cgroup v1, v2 and both at once. The outermost pod counts: what is below it
// was named by the pod itself. Where several hierarchies name a pod, it must be the same.
func PodOf(text string) (arbiter.PodUID, error) {
	var found arbiter.PodUID
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		uid := podOfPath(fields[2])
		if uid != "" && found != "" && uid != found {
			return "", fmt.Errorf("%w: %s and %s", ErrIdentity, found, uid)
		}
		if uid != "" {
			found = uid
		}
	}
	return found, nil
}

func podOfPath(path string) arbiter.PodUID {
	below := false // of the kubelet's folder
	for _, part := range strings.Split(path, "/") {
		if match := slicePattern.FindStringSubmatch(part); match != nil {
			return canonical(match[1])
		}
		if match := folderPattern.FindStringSubmatch(part); match != nil && below {
			return canonical(match[1])
		}
		below = below || part == "kubepods"
	}
	return ""
}

func canonical(uid string) arbiter.PodUID { return arbiter.PodUID(strings.ReplaceAll(uid, "_", "-")) }

// ValidUID says whether it is a pod's UID as the kubelet writes it. It becomes a folder's name.
func ValidUID(uid string) bool { return uidExact.MatchString(uid) && !strings.Contains(uid, "_") }

// FakeIdentityVariable names the pod in the test mode below.
const FakeIdentityVariable = "FIREPOOL_FAKE_POD_UID"

// ByFakeVariable is an identity for tests with plain processes: the variable in the environment that the process was started
// with. Every process can claim any pod, so the agent takes it only together with the fake device.
func ByFakeVariable(procRoot string, pid int) (arbiter.PodUID, error) {
	text, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "environ"))
	if errors.Is(err, os.ErrPermission) {
		return "", nil // another user's process is none of the test's
	}
	if err != nil {
		return "", err
	}
	for _, entry := range strings.Split(string(text), "\x00") {
		if uid, ok := strings.CutPrefix(entry, FakeIdentityVariable+"="); ok && ValidUID(uid) {
			return arbiter.PodUID(uid), nil
		}
	}
	return "", nil
}
