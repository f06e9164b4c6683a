package csi

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// KernelMounts are bind mounts. The agent's pod needs the kubelet's folder with mountPropagation Bidirectional.
type KernelMounts struct{}

// Bind the folder to the target, read-only: a socket can be connected to all the same. Bound already is success.
func (KernelMounts) Bind(source, target string) error {
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	mounted, err := isMounted(target)
	if err != nil || mounted {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	const flags = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		return errors.Join(fmt.Errorf("make %s read-only: %w", target, err), unix.Unmount(target, unix.MNT_DETACH))
	}
	return nil
}

// Unbind what is bound there; nothing is success too.
func (KernelMounts) Unbind(target string) error {
	for {
		mounted, err := isMounted(target)
		if err != nil || !mounted {
			return err
		}
		if err := unix.Unmount(target, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
}

// isMounted asks the kernel's own list: a bind mount within one file system shows in no other way.
func isMounted(target string) (bool, error) {
	resolved, err := filepath.EvalSymlinks(target)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	list, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	defer list.Close()
	lines := bufio.NewScanner(list)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && unescaped(fields[4]) == resolved {
			return true, nil
		}
	}
	return false, lines.Err()
}

// unescaped: the kernel writes space, tab, line feed and backslash in octal.
func unescaped(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
