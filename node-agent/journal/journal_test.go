package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/failpoint"
)

func TestAFileIsReplacedAsAWhole(t *testing.T) {
	file := File{filepath.Join(t.TempDir(), "state.json")}
	if entry, err := file.Read(); entry != nil || err != nil {
		t.Fatalf("%v, %v", entry, err)
	}
	write := func(epoch uint64) error {
		return file.Write(Entry{V: Version, BootID: "boot", Arbiter: arbiter.Durable{V: arbiter.DurableVersion, SeatEpoch: epoch}})
	}
	if err := write(1); err != nil {
		t.Fatal(err)
	}
	defer func() { failpoint.At = func(string) {} }()
	for i, point := range failpoint.All[1:7] {
		old := uint64(10 * (i + 1))
		if err := write(old); err != nil {
			t.Fatal(err)
		}
		failpoint.At = func(name string) {
			if name == point {
				panic(point)
			}
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Fatalf("%s was not passed", point)
				}
			}()
			_ = write(old + 1)
		}()
		failpoint.At = func(string) {}
		entry, err := file.Read()
		if err != nil {
			t.Fatalf("%s: %v", point, err)
		}
		renamed := point == failpoint.FileRenamed || point == failpoint.FolderSynced
		if got := entry.Arbiter.SeatEpoch; got != old && !renamed || got != old+1 && renamed {
			t.Fatalf("%s: epoch %d after %d", point, got, old)
		}
	}
}

func TestAFileThatCannotBeUsedIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	for _, text := range []string{"", "{", `{"v":2}`, "\x00\x00"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (File{path}).Read(); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := (File{filepath.Join(path, "x")}).Write(Entry{}); err == nil {
		t.Error("a write into no folder succeeded")
	}
}
