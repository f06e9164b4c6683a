package arbiter

// Effect is what the agent has to do: a closed union.
type Effect interface{ effect() }

// Granted answers the request: its pod may use the GPUs until it releases the seat epoch.
type Granted struct {
	RequestID string
	Grant     Grant // a copy
}

// Refused answers the request.
type Refused struct {
	RequestID string
	Problem   Problem
}

// Done answers a release or an operator's word.
type Done struct {
	ID   string
	Xids []int  // the job's own device errors under the grant that ended
	Lost string // why the grant ended before its release: what ran under it is lost by no fault of its own
}

// Kill ends a process of a Firepool pod with SIGKILL, if it still is the process of that name.
type Kill struct {
	Process Process
	UUID    string
	Why     string
}

// StartSelfTest: start a process that opens a context on the GPU, and look for it in the driver's list.
type StartSelfTest struct{ UUID string }

// Report is for people and for the broker: logged, counted and listed.
type Report struct {
	Kind   string `json:"kind"` // ungranted | foreign | quarantined | lifted | podLost | xid | adopted | selfTest | suspendedLost
	UUID   string `json:"uuid,omitempty"`
	Pod    PodUID `json:"pod,omitempty"`
	Xid    int    `json:"xid,omitempty"`
	Detail string `json:"detail"`
}

func (Granted) effect()       {}
func (Refused) effect()       {}
func (Done) effect()          {}
func (Kill) effect()          {}
func (StartSelfTest) effect() {}
func (Report) effect()        {}

// Code names a refusal: a closed set.
type Code string

const (
	InvalidRequest   Code = "InvalidRequest"
	UnknownPod       Code = "UnknownPod"
	IdentityMismatch Code = "IdentityMismatch"
	StaleLease       Code = "StaleLease"
	StaleSeat        Code = "StaleSeat"
	HoldAndWait      Code = "HoldAndWait"
	Superseded       Code = "Superseded"
	UngrantedUse     Code = "UngrantedUse"
	SeatUnavailable  Code = "SeatUnavailable"
	SeatSetSick      Code = "SeatSetSick" // of the GPUs that the pod sees too few are well: waiting does not help
	QueueFull        Code = "QueueFull"
	UnknownGPU       Code = "UnknownGPU"
	NotSuspended     Code = "NotSuspended"
)

// Problem is a refusal with its cause and what to do about it.
type Problem struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Remedy  string `json:"remedy"`
}

func (p Problem) Error() string { return string(p.Code) + ": " + p.Message + ". " + p.Remedy }
