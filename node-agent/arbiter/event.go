package arbiter

// Event is everything that can happen to a node: a closed union.
type Event interface{ event() }

// PodJoined: the pod's volume was published, or the pod has shown its token. Again for the same UID it changes nothing.
type PodJoined struct {
	UID                     PodUID
	Namespace, Name, Tenant string
	// NoVolume: nobody will say that the pod has gone. It has when none of its processes is left.
	NoVolume bool
}

// PodGone: the pod's volume was unpublished.
type PodGone struct{ UID PodUID }

// Requested asks for seats. The ID is the client's own; the same again is the same request.
type Requested struct {
	ID         string
	Pod        PodUID
	LeaseEpoch uint64
	Count      int
	Priority   int
	// Tenant of the pod's account whom the seat is for, as the pod says; empty: the account alone is charged.
	Tenant     string
	Visible    []string
	DeadlineMs int64
}

// Cancelled: who asked has gone. A grant that was made for it meanwhile is released.
type Cancelled struct {
	ID  string
	Pod PodUID
}

// Released gives everything under the seat epoch back.
type Released struct {
	ID        string // names the answer
	Pod       PodUID
	SeatEpoch uint64
	// Suspended: the processes are off the GPUs, and live on.
	Suspended bool
}

// Suspending: the processes that are on the pod's GPUs are about to be taken off them. Again for the same epoch it adds processes.
type Suspending struct {
	ID        string
	Pod       PodUID
	SeatEpoch uint64
	Processes []Process
	HostBytes uint64
}

// Resumed: the pod's suspended processes are on the GPUs of this epoch again.
type Resumed struct {
	ID        string
	Pod       PodUID
	SeatEpoch uint64
}

// Observed is one measurement of the whole node, begun at AtMs.
type Observed struct {
	AtMs int64
	GPUs []Reading
	Pods PodsReading
}

// Reading of one GPU. A Problem is anything that keeps a value from being known; then the value means nothing.
type Reading struct {
	UUID    string
	Used    BytesReading
	Listed  ProcessesReading // the driver's process lists
	Openers ProcessesReading // who has the device file open or mapped
}

// BytesReading is a number of bytes, unless there is a problem.
type BytesReading struct {
	Bytes   uint64
	Problem string
}

// ProcessesReading is a list of processes, unless there is a problem.
type ProcessesReading struct {
	Processes []Process
	Problem   string
}

// PodsReading lists the processes of every pod of the node, unless there is a problem.
type PodsReading struct {
	ByPod   map[PodUID][]Process
	Problem string
}

// SelfTested answers StartSelfTest: whether the driver's list has shown the process that the test started.
type SelfTested struct {
	UUID    string
	Seen    bool
	Problem string
}

// XidReported is a device error that the driver told.
type XidReported struct {
	UUID string
	Code int
}

// Cleared: an operator has dealt with the GPU. It is verified again like any other.
type Cleared struct {
	ID   string
	UUID string
}

// Ticked: time has passed.
type Ticked struct{}

func (PodJoined) event()   {}
func (PodGone) event()     {}
func (Requested) event()   {}
func (Cancelled) event()   {}
func (Released) event()    {}
func (Suspending) event()  {}
func (Resumed) event()     {}
func (Observed) event()    {}
func (SelfTested) event()  {}
func (XidReported) event() {}
func (Cleared) event()     {}
func (Ticked) event()      {}
