package measure

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"firepool/node-agent/arbiter"
)

func TestThePodAtTheOtherEndOfAConnection(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Skip("needs", address, err)
		}
		defer listener.Close()
		out, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		in, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		remote := in.RemoteAddr().(*net.TCPAddr).AddrPort()
		port := uint16(listener.Addr().(*net.TCPAddr).Port)
		mine := func(_ string, pid int) (arbiter.PodUID, error) {
			if pid == os.Getpid() {
				return "mine", nil
			}
			return "another", nil
		}
		if pod, pid, err := PodOfPeer("/proc", mine, remote, port); err != nil || pod != "mine" || pid != os.Getpid() {
			t.Errorf("%s: %s, %d, %v", address, pod, pid, err)
		}
		if _, _, err := PodOfPeer("/proc", mine, remote, port+1); !errors.Is(err, ErrNoPeer) {
			t.Errorf("%s: a connection to elsewhere: %v", address, err)
		}
		nobody := func(string, int) (arbiter.PodUID, error) { return "", nil }
		if _, _, err := PodOfPeer("/proc", nobody, remote, port); !errors.Is(err, ErrNoPeer) {
			t.Errorf("%s: a process of no pod: %v", address, err)
		}
	}
}

// fakeProcess has the socket of that inode in its network: 10.1.2.3:4660 to 10.96.0.7:9809.
func fakeProcess(t *testing.T, root string, pid int, network string, inTable, open bool) {
	t.Helper()
	folder := filepath.Join(root, strconv.Itoa(pid))
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	if inTable {
		table += "   0: 0302010A:1234 0700600A:2651 01 00000000:00000000 00:00000000 00000000  1000        0 77 1 0 20 4 1 10 -1\n"
	}
	for _, sub := range []string{"ns", "net", "fd"} {
		if err := os.MkdirAll(filepath.Join(folder, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.Symlink("net:["+network+"]", filepath.Join(folder, "ns", "net")),
		os.WriteFile(filepath.Join(folder, "net", "tcp"), []byte(table), 0o644))
	if open {
		err = errors.Join(err, os.Symlink("socket:[77]", filepath.Join(folder, "fd", "5")))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnAddressInTwoPodsIsNobodys(t *testing.T) {
	remote := netip.MustParseAddrPort("10.1.2.3:4660")
	byPid := func(_ string, pid int) (arbiter.PodUID, error) {
		return arbiter.PodUID(fmt.Sprint("pod-", pid/10)), nil
	}
	root := t.TempDir()
	fakeProcess(t, root, 10, "1", true, false)
	fakeProcess(t, root, 11, "1", true, true)
	fakeProcess(t, root, 20, "2", false, true) // the number is of another network's socket
	pod, pid, err := PodOfPeer(root, byPid, remote, 9809)
	if err != nil || pod != "pod-1" || pid != 11 {
		t.Fatalf("%s, %d, %v", pod, pid, err)
	}
	fakeProcess(t, root, 30, "3", true, true) // a network of its own, with the other's address in it
	if _, _, err := PodOfPeer(root, byPid, remote, 9809); !errors.Is(err, ErrNoPeer) {
		t.Fatal(err)
	}
}

// TestAPodInANetworkOfItsOwn: with the kernel's own tables, of a network namespace that is joined to this one by a pair of interfaces.
func TestAPodInANetworkOfItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	pod := exec.Command("unshare", "--net", "sh", "-c", "echo up; exec sleep 600")
	up, err := pod.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pod.Start(); err != nil {
		t.Skip("needs a network namespace:", err)
	}
	t.Cleanup(func() { _ = pod.Process.Kill(); _ = pod.Wait() })
	if _, err := up.Read(make([]byte, 3)); err != nil {
		t.Skip("needs a network namespace:", err)
	}
	id := os.Getpid()
	link, subnet, inside := fmt.Sprint("fp", id), fmt.Sprintf("169.254.%d.", id%254+1), strconv.Itoa(pod.Process.Pid)
	for _, command := range [][]string{
		{"ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", inside},
		{"ip", "address", "add", subnet + "1/24", "dev", link},
		{"ip", "link", "set", link, "up"},
		{"nsenter", "-t", inside, "-n", "ip", "address", "add", subnet + "2/24", "dev", "eth0"},
		{"nsenter", "-t", inside, "-n", "ip", "link", "set", "eth0", "up"},
	} {
		if said, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs a pair of interfaces: %v: %v: %s", command, err, said)
		}
	}
	listener, err := net.Listen("tcp", subnet+"1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	caller := exec.Command("nsenter", "-t", inside, "-n", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s1/%d; exec sleep 600", subnet, port))
	if err := caller.Start(); err != nil {
		t.Skip("needs bash:", err)
	}
	t.Cleanup(func() { _ = caller.Process.Kill(); _ = caller.Wait() })
	_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(30 * time.Second))
	connection, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	who := func(_ string, pid int) (arbiter.PodUID, error) {
		return arbiter.PodUID(fmt.Sprint("process-", pid)), nil
	}
	remote := connection.RemoteAddr().(*net.TCPAddr).AddrPort()
	if _, pid, err := PodOfPeer("/proc", who, remote, port); err != nil || pid != caller.Process.Pid {
		t.Fatalf("%d, wanted %d: %v", pid, caller.Process.Pid, err)
	}
}

func TestPodName(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"jobs_pool-0-0-g1_" + uidA, "kube-system_proxy_0123456789abcdef"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	namespace, name, err := PodName(folder, uidA)
	if err != nil || namespace != "jobs" || name != "pool-0-0-g1" {
		t.Fatalf("%s, %s, %v", namespace, name, err)
	}
	if _, _, err := PodName(folder, "7c9e6679-7425-40de-944b-e07fc1f90ae7"); err == nil {
		t.Fatal("a pod that the kubelet does not have has a name")
	}
}
