// Package journal keeps the arbiter's durable state in two small files, each replaced as a whole: written beside and renamed over, so that a
// reader finds the old or the new one and never a part.
//
//	state.json       synced to the disk: survives everything. After a boot no process is left, so only its epoch and its accounts count then
//	                 (arbiter.Restore). Its epoch is a bound that no grant has reached
//	state.BOOT.json  the state of this boot as it is, left to the kernel to write. It survives the agent; when the kernel dies, everybody of whom it
//	                 tells dies too
//
// So a grant waits for a disk only when it is the first one over the bound, and an epoch that was told to anybody is never told again: within a
// boot the second file has the last one, and after it every new one is over the bound.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/failpoint"
)

// Version of the files' shape. In version 1 the first file was all there is, and as exact as the second one.
const Version = 2

// EpochsAhead is how far the synced bound is ahead of the epochs: a thousand grants are minutes of a busy node, and a boot, which
// skips what is left of them, takes more than the second after which the clock is ahead of them again (agent.New). Tests set another.
var EpochsAhead uint64 = 1_000

// maxBytes bounds what is read: 512 pods and 4,096 tenants are under 1 MiB.
const maxBytes = 8 << 20

// Entry is a file.
type Entry struct {
	V       int             `json:"v"`
	BootID  string          `json:"bootId"`
	Arbiter arbiter.Durable `json:"arbiter"`
}

// Journal of one node and one boot of it.
type Journal struct {
	// Path of the synced file; the other one is beside it.
	Path   string
	BootID string
	bound  uint64 // that is on the disk; 0 before the first sync
}

// ErrUnreadable: a file is there and cannot be used.
var ErrUnreadable = errors.New("the agent's file cannot be read")

// Read what is known; nil when there is nothing, or when the file of this boot is lost.
func (j *Journal) Read() (*Entry, error) {
	synced, err := read(j.Path)
	if synced == nil || err != nil || synced.V == 1 || synced.BootID != j.BootID {
		return synced, err
	}
	return read(j.ofBoot(j.BootID))
}

func (j *Journal) ofBoot(bootID string) string {
	return strings.TrimSuffix(j.Path, ".json") + "." + bootID + ".json"
}

func read(path string) (*Entry, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if info.Size() > maxBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes", ErrUnreadable, path, info.Size())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	var entry Entry
	if err := json.Unmarshal(text, &entry); err != nil {
		return nil, fmt.Errorf("%w: %s: %w. Move it away: the agent then adopts what pods use", ErrUnreadable, path, err)
	}
	if entry.V != Version && entry.V != 1 {
		return nil, fmt.Errorf("%w: %s has version %d, this agent knows %d", ErrUnreadable, path, entry.V, Version)
	}
	return &entry, nil
}

// Write what is so now. When it returns nil, an agent that starts again knows it, and after a boot at least its epoch.
func (j *Journal) Write(state arbiter.Durable) error {
	if state.SeatEpoch > j.bound {
		return j.Sync(state)
	}
	return j.write(j.ofBoot(j.BootID), state, false)
}

// Sync writes what is so now, and has it on the disk: also the accounts survive a boot. The file of this boot comes first: the other one,
// once it names this boot, says that there is one.
func (j *Journal) Sync(state arbiter.Durable) error {
	if err := j.write(j.ofBoot(j.BootID), state, false); err != nil {
		return err
	}
	isFirst := j.bound == 0
	state.SeatEpoch += EpochsAhead
	if err := j.write(j.Path, state, true); err != nil {
		return err
	}
	j.bound = state.SeatEpoch
	if isFirst {
		return j.removeEarlier()
	}
	return nil
}

// removeEarlier ends the files of earlier boots.
func (j *Journal) removeEarlier() error {
	found, err := filepath.Glob(j.ofBoot("*") + "*")
	for _, path := range found {
		if !strings.HasPrefix(path, j.ofBoot(j.BootID)) {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

func (j *Journal) write(path string, state arbiter.Durable, synced bool) error {
	text, err := json.Marshal(Entry{V: Version, BootID: j.BootID, Arbiter: state})
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := writeFile(next, text, synced); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	failpoint.At(failpoint.FileRenamed)
	if !synced {
		return nil
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := folder.Sync(); err != nil {
		return err
	}
	failpoint.At(failpoint.FolderSynced)
	return nil
}

func writeFile(path string, text []byte, synced bool) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	failpoint.At(failpoint.FileBegun)
	half := len(text) / 2
	for _, part := range [][]byte{text[:half], text[half:]} {
		if _, err := file.Write(part); err != nil {
			return err
		}
		failpoint.At(failpoint.FilePartial)
	}
	failpoint.At(failpoint.FileWritten)
	if !synced {
		return nil
	}
	if err := file.Sync(); err != nil {
		return err
	}
	failpoint.At(failpoint.FileSynced)
	return nil
}
