package arbiter

// Every limit of the arbiter, each with its reason. Times are milliseconds.
const (
	// KillAfterMs: a job that was told to end has had its runner's own grace before the release; two seconds
	// more is what a process needs to leave the kernel after a large device allocation is torn down.
	KillAfterMs = 2_000
	// KillAgainMs: a SIGKILL is repeated only in case a process was missed; a process in an uninterruptible
	// driver call cannot hear it any sooner.
	KillAgainMs = 1_000
	// QuarantineAfterMs: a seat that is still not measured empty is no longer slow but sick, and callers must
	// be told so rather than wait on it.
	QuarantineAfterMs = 10_000
	// FreshMs: a grant relies on a measurement of this age at most, counted from its beginning. One takes up to some hundred
	// milliseconds on a node with thousands of processes, and an idle node is measured twice a second; whoever has not answered
	// for two seconds is not answering. Nobody but a thief can have come on the GPU since, and thieves are found by the next look.
	FreshMs = 2_000
	// SelfTestAgainMs: a self-test creates a device context (a fraction of a second of a GPU that nobody has);
	// a failing one must not keep the device busy.
	SelfTestAgainMs = 10_000
	// PriorityAgeMs lifts a waiter by one class each period, so that no class can starve another for ever.
	PriorityAgeMs = 30_000
	// MaxPriority bounds what a pod may ask for; ageing over it takes as many periods.
	MaxPriority = 9
	// MaxSeats: the largest seat set is the GPUs of one node, and nodes have at most 16.
	MaxSeats = 16
	// MaxPods: one shared claim has at most 256 consumers; a kubelet runs 110 pods by default, 500 at most.
	MaxPods = 512
	// MaxWaiting: one request for each pod, so the same number.
	MaxWaiting = MaxPods
	// MaxWaitMs: a client that waits longer asks again; it bounds what a lost client leaves in the queue.
	MaxWaitMs = 600_000
	// StartGrainMs: the kernel tells when a process started in ticks of 10 ms.
	StartGrainMs = 10
	// MaxXids: a grant remembers this many XID codes; a broken GPU can repeat one thousands of times.
	MaxXids = 16
	// MaxTenants bounds the account of seat-seconds: a name is a metric's label and a line of the journal.
	MaxTenants = 4_096

	// MaxTenantsOfAccount: a pod's runner says which tenant a seat is for. One that lies fills up the names of its own account alone.
	MaxTenantsOfAccount = 256

	// MemorySlackBytes: what an idle driver's used memory was allowed to move over the learnt baseline. Smaller
	// than the smallest CUDA context (over 100 MiB), larger than the driver's own bookkeeping.
	MemorySlackBytes = 16 << 20
	// FirstBaselineMaxBytes: an empty device uses little. More than this when the baseline is first learnt is
	// taken for memory that somebody left there, not for the baseline.
	FirstBaselineMaxBytes = 256 << 20
)

// OtherTenant is charged when MaxTenants names are known already, or MaxTenantsOfAccount of an account.
const OtherTenant = "(other)"
