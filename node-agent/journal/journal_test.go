package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/failpoint"
)

func at(epoch uint64) arbiter.Durable {
	return arbiter.Durable{V: arbiter.DurableVersion, SeatEpoch: epoch}
}

// dying runs until the point is passed for the nth time; false when it was not.
func dying(point string, nth int, act func()) (died bool) {
	failpoint.At = func(name string) {
		if name == point {
			if nth--; nth == 0 {
				panic(point)
			}
		}
	}
	defer func() { failpoint.At = func(string) {}; died = recover() != nil }()
	act()
	return false
}

func TestAFileIsReplacedAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	journal := &Journal{Path: path, BootID: "boot"}
	if entry, err := journal.Read(); entry != nil || err != nil {
		t.Fatalf("%v, %v", entry, err)
	}
	for i, point := range failpoint.All[1:7] {
		for _, synced := range []bool{false, true} {
			old := uint64(10 * (i + 1))
			if err := journal.Sync(at(old)); err != nil {
				t.Fatal(err)
			}
			write := journal.Write
			if synced {
				write = journal.Sync
			}
			if died := dying(point, 1, func() { _ = write(at(old + 1)) }); died == (point == failpoint.FileSynced || point == failpoint.FolderSynced) && !synced {
				t.Fatalf("%s: died is %v", point, died)
			}
			entry, err := journal.Read()
			if err != nil {
				t.Fatalf("%s: %v", point, err)
			}
			// The file of this boot is the first of the two.
			renamed := point == failpoint.FileRenamed || point == failpoint.FileSynced || point == failpoint.FolderSynced
			if got := entry.Arbiter.SeatEpoch; got != old && !renamed || got != old+1 && renamed {
				t.Fatalf("%s: epoch %d after %d", point, got, old)
			}
		}
	}
}

// TestNoEpochIsToldTwice: whoever dies when, the agent (what was written stays) or the kernel (what was not synced may be lost), nobody is told an
// epoch again.
func TestNoEpochIsToldTwice(t *testing.T) {
	defer func(ahead uint64) { EpochsAhead = ahead }(EpochsAhead)
	EpochsAhead = 5
	for range 12 { // each of them syncs some fifty times
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		path := filepath.Join(t.TempDir(), "state.json")
		boot, told := 0, uint64(0)
		var onDisk []byte // the synced file as of the last time that its folder was synced
		for range 8 {
			journal := &Journal{Path: path, BootID: fmt.Sprint("boot-", boot)}
			entry, err := journal.Read()
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			epoch := uint64(0)
			if entry != nil {
				epoch = entry.Arbiter.SeatEpoch
			}
			if epoch < told {
				t.Fatalf("seed %d: goes on from epoch %d, %d was told", seed, epoch, told)
			}
			point := failpoint.All[1+random.IntN(6)]
			dying(point, 1+random.IntN(30), func() {
				write := journal.Sync // as a start does
				for range 20 {
					if err := write(at(epoch)); err != nil {
						t.Errorf("seed %d: %v", seed, err)
					}
					told = epoch
					onDisk, _ = os.ReadFile(path)
					epoch++
					write = journal.Write
				}
			})
			if random.IntN(2) == 0 { // the kernel dies
				boot++
				lost := random.IntN(3)
				if onDisk != nil && lost > 0 {
					_ = os.WriteFile(path, onDisk, 0o600)
				}
				if lost > 1 {
					_ = os.WriteFile(journal.ofBoot(journal.BootID), nil, 0o600)
				}
			}
		}
	}
}

func TestWhichFileCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	first := &Journal{Path: path, BootID: "first"}
	if err := errors.Join(first.Sync(at(5)), first.Write(at(6))); err != nil {
		t.Fatal(err)
	}
	epochOf := func(j *Journal) uint64 {
		entry, err := j.Read()
		if err != nil {
			t.Fatal(err)
		}
		if entry == nil {
			return 0
		}
		return entry.Arbiter.SeatEpoch
	}
	second := &Journal{Path: path, BootID: "second"}
	if same, other := epochOf(first), epochOf(second); same != 6 || other != 5+EpochsAhead {
		t.Fatalf("%d in the same boot, %d in another", same, other)
	}
	if err := second.Sync(at(2_000)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first.ofBoot("first")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the file of an earlier boot is left: %v", err)
	}
	if err := os.Remove(second.ofBoot("second")); err != nil {
		t.Fatal(err)
	}
	if got := epochOf(second); got != 0 {
		t.Fatalf("%d without the file of this boot: who holds what is lost", got)
	}
	// An earlier agent's file is exact.
	if err := os.WriteFile(path, []byte(`{"v":1,"bootId":"second","arbiter":{"v":1,"seatEpoch":7}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := epochOf(second); got != 7 {
		t.Fatalf("%d of a file of version 1", got)
	}
}

func TestAFileThatCannotBeUsedIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	journal := &Journal{Path: path, BootID: "boot"}
	texts := []string{"", "{", `{"v":3}`, "\x00\x00"}
	for _, text := range texts {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := journal.Read(); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := journal.Sync(at(1)); err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if err := os.WriteFile(journal.ofBoot("boot"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := journal.Read(); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%q of this boot: %v", text, err)
		}
	}
	if err := (&Journal{Path: filepath.Join(path, "x")}).Sync(at(1)); err == nil {
		t.Error("a write into no folder succeeded")
	}
}
