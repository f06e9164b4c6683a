// Package measure reads what the kernel and the GPU driver say about a node, and ends processes. It decides nothing: whatever
// cannot be read becomes a Problem of the reading.
package measure

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"firepool/node-agent/arbiter"
)

// BootMs is the time since boot, including sleep: the clock by which the kernel tells when a process started.
func BootMs() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("measure: no boot clock: %v", err)) // Linux has it since 2.6.39
	}
	return now.Nano() / 1_000_000
}

// BootID differs after every boot.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// ticksMs: the kernel shows times to programs in USER_HZ, which is 100 on every architecture that has GPUs of this kind.
const ticksMs = 10

// status is what /proc/<pid>/stat says.
type status struct {
	name    string
	state   byte
	threads int
	startMs int64
}

// dead: nothing of the process runs any more. A leader that ended before its threads is a zombie too, but not dead.
func (s status) dead() bool { return s.state == 'X' || s.state == 'Z' && s.threads <= 1 }

func readStatus(procRoot string, pid int) (status, error) {
	text, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "stat"))
	if err != nil {
		return status{}, err
	}
	return parseStatus(string(text))
}

// parseStatus: the name is in parentheses and may itself hold some, so the fields begin after the last one.
func parseStatus(text string) (status, error) {
	open, shut := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || shut < open {
		return status{}, fmt.Errorf("no name in %q", text)
	}
	fields := strings.Fields(text[shut+1:])
	if len(fields) < 20 {
		return status{}, fmt.Errorf("%d fields after the name in %q", len(fields), text)
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return status{}, err
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return status{}, err
	}
	return status{text[open+1 : shut], fields[0][0], threads, ticks * ticksMs}, nil
}

// gone: the process ended while it was being read.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

func pidsIn(folder string) ([]int, error) {
	open, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer open.Close()
	names, err := open.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// FileID names a file whatever its path: a device by its numbers, any other file by its place.
type FileID struct {
	device bool
	a, b   uint64
}

// IdentityOf the file at the path, through links.
func IdentityOf(path string) (FileID, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return FileID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFCHR {
		return FileID{true, uint64(stat.Rdev), 0}, nil
	}
	return FileID{false, uint64(stat.Dev), stat.Ino}, nil
}

// search is for devices among the files of one process.
type search struct {
	devices map[FileID]string
	folder  string // every device file's path begins with it
	found   map[string]bool
}

// opened finds which of the devices the process has open or mapped, in any of its threads.
func opened(procRoot string, pid int, devices map[FileID]string, folder string) (map[string]bool, error) {
	s := search{devices, folder, map[string]bool{}}
	base := filepath.Join(procRoot, strconv.Itoa(pid))
	threads, err := pidsIn(filepath.Join(base, "task"))
	if err != nil {
		return nil, err
	}
	for _, thread := range threads {
		if thread != pid && sharesFiles(pid, thread) {
			continue
		}
		if err := s.descriptors(filepath.Join(base, "task", strconv.Itoa(thread), "fd")); err != nil && !gone(err) {
			return nil, err
		}
	}
	if err := s.mappings(base); err != nil && !gone(err) {
		return nil, err
	}
	return s.found, nil
}

// note the file behind the kernel's link, if it is a device.
func (s search) note(link string) error {
	id, err := IdentityOf(link)
	if gone(err) {
		return nil
	}
	if uuid, known := s.devices[id]; known && err == nil {
		s.found[uuid] = true
	}
	return err
}

// sharesFiles: a thread may have a table of open files of its own; most share the leader's, which is then read once.
func sharesFiles(pid, thread int) bool {
	const kcmpFiles = 2
	result, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(thread), kcmpFiles, 0, 0, 0)
	return errno == 0 && result == 0
}

func (s search) descriptors(folder string) error {
	numbers, err := pidsIn(folder)
	if err != nil {
		return err
	}
	for _, number := range numbers {
		link := filepath.Join(folder, strconv.Itoa(number))
		target, err := os.Readlink(link)
		if gone(err) {
			continue
		}
		// Only files that can be a device are looked at: a stat of others may hang on a dead server.
		if err == nil && strings.HasPrefix(target, s.folder) {
			err = s.note(link)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mappings: one keeps a device open after its descriptor was closed.
func (s search) mappings(base string) error {
	text, err := os.ReadFile(filepath.Join(base, "maps"))
	if err != nil || !bytes.Contains(text, []byte(s.folder)) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, s.folder) {
			continue
		}
		span, _, _ := strings.Cut(line, " ")
		if err := s.note(filepath.Join(base, "map_files", span)); err != nil {
			return err
		}
	}
	return nil
}

// Lives: the pid still is the process that was measured.
func Lives(procRoot string, p arbiter.Process) bool {
	now, err := readStatus(procRoot, p.Pid)
	return err == nil && now.startMs == p.StartMs && !now.dead()
}

// Kill ends the process with SIGKILL, if the pid still is the process that was measured. Nil when it was gone already.
func Kill(procRoot string, p arbiter.Process) error {
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.Pid, err)
	}
	defer unix.Close(fd)
	// The descriptor names one process for ever, so what is read now is about the one that is killed.
	now, err := readStatus(procRoot, p.Pid)
	if gone(err) || err == nil && now.startMs != p.StartMs {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.Pid, err)
	}
	return nil
}
