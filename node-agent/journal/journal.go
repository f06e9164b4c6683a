// Package journal keeps the arbiter's durable state in one small file. It is replaced as a whole: written beside, synced, renamed over,
// and its folder synced, so that a reader finds the old or the new one and never a part.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/failpoint"
)

// Version of the file's shape.
const Version = 1

// maxBytes bounds what is read: 512 pods and 4,096 tenants are under 1 MiB.
const maxBytes = 8 << 20

// Entry is the file.
type Entry struct {
	V       int             `json:"v"`
	BootID  string          `json:"bootId"`
	Arbiter arbiter.Durable `json:"arbiter"`
}

// File by its path.
type File struct{ Path string }

// ErrUnreadable: the file is there and cannot be used.
var ErrUnreadable = errors.New("the agent's file cannot be read")

// Read the file; nil when there is none.
func (f File) Read() (*Entry, error) {
	info, err := os.Stat(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if info.Size() > maxBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes", ErrUnreadable, f.Path, info.Size())
	}
	text, err := os.ReadFile(f.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	var entry Entry
	if err := json.Unmarshal(text, &entry); err != nil {
		return nil, fmt.Errorf("%w: %s: %w. Move it away: the agent then adopts what pods use", ErrUnreadable, f.Path, err)
	}
	if entry.V != Version {
		return nil, fmt.Errorf("%w: %s has version %d, this agent knows %d", ErrUnreadable, f.Path, entry.V, Version)
	}
	return &entry, nil
}

// Write replaces the file. When it returns nil, the entry is on disk.
func (f File) Write(entry Entry) error {
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	next := f.Path + ".next"
	if err := writeSynced(next, text); err != nil {
		return err
	}
	failpoint.At(failpoint.FileSynced)
	if err := os.Rename(next, f.Path); err != nil {
		return err
	}
	failpoint.At(failpoint.FileRenamed)
	folder, err := os.Open(filepath.Dir(f.Path))
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

func writeSynced(path string, text []byte) error {
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
	return file.Sync()
}
