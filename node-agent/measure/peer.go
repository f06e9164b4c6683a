package measure

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"firepool/node-agent/arbiter"
)

// ErrNoPeer: no pod of this node has the other end of the connection, or more than one pod claims to.
var ErrNoPeer = errors.New("no one pod of this node has the other end of the connection")

// established in /proc/net/tcp.
const established = "01"

// PodOfPeer finds the process at the other end of a TCP connection from this node, and its pod: the socket with that address in the
// kernel's tables, and who has it open. That is what SO_PEERCRED is for a unix socket: a packet with a forged address leads to no socket
// of its sender's. A process can put any address into a network namespace of its own (which a user namespace lets it make), so an
// address that is in two of them is nobody's.
//
// remote is the address of the other end as it is seen here, and must be what the pod itself has: nothing may translate it on the way.
// port is the one that was connected to.
func PodOfPeer(procRoot string, identify Identify, remote netip.AddrPort, port uint16) (arbiter.PodUID, int, error) {
	networks, err := networksOf(procRoot)
	if err != nil {
		return "", 0, err
	}
	var pod arbiter.PodUID
	pid := 0
	for _, members := range networks {
		socket, err := socketIn(procRoot, members, remote, port)
		if err != nil {
			return "", 0, err
		}
		if socket == "" {
			continue
		}
		for _, member := range members {
			if !hasOpen(procRoot, member, socket) {
				continue
			}
			found, err := identify(procRoot, member)
			if gone(err) {
				continue
			}
			if err != nil {
				return "", 0, err
			}
			if found == "" || pod != "" && found != pod {
				return "", 0, fmt.Errorf("%w: process %d has it open too", ErrNoPeer, member)
			}
			pod, pid = found, member
		}
	}
	if pod == "" {
		return "", 0, fmt.Errorf("%w: %s", ErrNoPeer, remote)
	}
	return pod, pid, nil
}

// networksOf the node, each with its processes. One that cannot be read is in none of them.
func networksOf(procRoot string) (map[string][]int, error) {
	pids, err := pidsIn(procRoot)
	if err != nil {
		return nil, err
	}
	networks := map[string][]int{}
	for _, pid := range pids {
		if network, err := os.Readlink(filepath.Join(procRoot, strconv.Itoa(pid), "ns", "net")); err == nil {
			networks[network] = append(networks[network], pid)
		}
	}
	return networks, nil
}

// socketIn the network of these processes: as its descriptors show it, socket:[inode]; empty when there is none.
func socketIn(procRoot string, members []int, remote netip.AddrPort, port uint16) (string, error) {
	for _, member := range members {
		var texts []byte
		for _, table := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(member), "net", table))
			if err != nil && !gone(err) && !errors.Is(err, syscall.EINVAL) {
				return "", err
			}
			texts = append(texts, text...)
		}
		if len(texts) > 0 { // else the process has just ended, and another one of the network is asked
			return socketOf(string(texts), remote, port), nil
		}
	}
	return "", nil
}

func socketOf(table string, remote netip.AddrPort, port uint16) string {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[3] != established {
			continue
		}
		here, err := parseAddress(fields[1])
		if err != nil || here != remote {
			continue
		}
		if there, err := parseAddress(fields[2]); err == nil && there.Port() == port {
			return "socket:[" + fields[9] + "]"
		}
	}
	return ""
}

// parseAddress: words of four bytes in the machine's order, which is little-endian wherever there are GPUs of this kind, then the port.
func parseAddress(text string) (netip.AddrPort, error) {
	address, portText, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("no address in %q", text)
	}
	for i := 0; i < len(raw); i += 4 {
		raw[i], raw[i+1], raw[i+2], raw[i+3] = raw[i+3], raw[i+2], raw[i+1], raw[i]
	}
	ip, ok := netip.AddrFromSlice(raw)
	port, err := strconv.ParseUint(portText, 16, 16)
	if err != nil || !ok {
		return netip.AddrPort{}, fmt.Errorf("no address in %q", text)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
}

func hasOpen(procRoot string, pid int, file string) bool {
	folder := filepath.Join(procRoot, strconv.Itoa(pid), "fd")
	descriptors, err := pidsIn(folder)
	if err != nil {
		return false
	}
	for _, descriptor := range descriptors {
		if target, err := os.Readlink(filepath.Join(folder, strconv.Itoa(descriptor))); err == nil && target == file {
			return true
		}
	}
	return false
}

// PodName is the pod's namespace and name, by the folder that the kubelet makes for its logs before it starts anything of it:
// NAMESPACE_NAME_UID. No name has an underscore.
func PodName(logsFolder string, uid arbiter.PodUID) (namespace, name string, err error) {
	found, err := filepath.Glob(filepath.Join(logsFolder, "*_*_"+string(uid)))
	if err != nil {
		return "", "", err
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("%d folders of pod %s in %s", len(found), uid, logsFolder)
	}
	parts := strings.Split(filepath.Base(found[0]), "_")
	if len(parts) != 3 {
		return "", "", fmt.Errorf("%s is not NAMESPACE_NAME_UID", found[0])
	}
	return parts[0], parts[1], nil
}
