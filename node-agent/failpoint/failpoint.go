// Package failpoint names the points at which tests kill the agent.
package failpoint

// At is called at each named point. In the agent it does nothing; only the tests' build of it sets another function.
var At = func(string) {}

// Points by name, in the order in which a change passes them.
const (
	Decided       = "decided"        // by the arbiter, in memory only
	FileBegun     = "file-begun"     // the new file is empty
	FilePartial   = "file-partial"   // half of it is written
	FileWritten   = "file-written"   // all of it, perhaps in memory only
	FileSynced    = "file-synced"    // all of it is on disk, under its temporary name: only where the change is synced
	FileRenamed   = "file-renamed"   // it is the file, perhaps in memory only
	FolderSynced  = "folder-synced"  // it is the file: only where the change is synced
	EffectsBegun  = "effects-begun"  // nobody was told
	EffectsFinish = "effects-finish" // everybody was told
)

// Synced are passed only by changes that are.
var Synced = []string{FileSynced, FolderSynced}

// All of them.
var All = []string{Decided, FileBegun, FilePartial, FileWritten, FileSynced, FileRenamed, FolderSynced, EffectsBegun, EffectsFinish}
