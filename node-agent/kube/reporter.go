package kube

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"firepool/node-agent/agent"
	"firepool/node-agent/arbiter"
)

const (
	// lookEvery: how late something that is due may be.
	lookEvery = 5 * time.Second
	// tryAgain: what the API server refuses (a right that is missing) is not asked for all the time.
	tryAgain = 30 * time.Second
	// tellAgain: a cluster forgets events after an hour.
	tellAgain = 30 * time.Minute
)

// Reporter brings the cluster to what the agent's status says, as often as it takes. It remembers only what it has already done, so
// that an agent that starts again does it once more: all of it may be done twice.
type Reporter struct {
	client *Client
	node   string
	log    *slog.Logger
	now    func() time.Time

	due     map[string]time.Time // what has failed
	deleted map[arbiter.PodUID]bool
	tainted map[string]bool // by UUID; none when it is not known yet
	told    map[string]telling
	version string // of the API that has DeviceTaintRules
}

// telling is what was told about a GPU.
type telling struct {
	quarantine arbiter.Quarantine
	at         time.Time
}

// NewReporter of a node, by its name in the cluster.
func NewReporter(client *Client, node string, log *slog.Logger) *Reporter {
	return &Reporter{client: client, node: node, log: log, now: time.Now, due: map[string]time.Time{},
		deleted: map[arbiter.PodUID]bool{}, tainted: map[string]bool{}, told: map[string]telling{}}
}

// Run until the context ends. It looks whenever there is a report, and when something that failed is due.
func (r *Reporter) Run(ctx context.Context, status func() (agent.Status, bool), reported <-chan struct{}) {
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	for {
		if now, ok := status(); ok {
			r.look(ctx, now)
		}
		select {
		case <-ctx.Done():
			return
		case <-reported:
		case <-ticks.C:
		}
	}
}

func (r *Reporter) look(ctx context.Context, status agent.Status) {
	condemned := map[arbiter.PodUID]bool{}
	for _, pod := range status.Condemned {
		condemned[pod.UID] = true
		// A pod that was registered by hand has no name in the cluster.
		if pod.Namespace != "" && pod.Name != "" && !r.deleted[pod.UID] {
			r.try("delete pod "+pod.Namespace+"/"+pod.Name, func() error { return r.deletePod(ctx, pod) })
		}
	}
	maps.DeleteFunc(r.deleted, func(uid arbiter.PodUID, _ bool) bool { return !condemned[uid] })
	for _, gpu := range status.GPUs {
		if on, known := r.tainted[gpu.UUID]; !known || on != condemns(gpu.Quarantine) {
			r.try("taint "+gpu.UUID, func() error { return r.taint(ctx, gpu) })
		}
		r.try("tell of "+gpu.UUID, func() error { return r.tell(ctx, gpu) })
	}
}

// try what has not failed a moment ago.
func (r *Reporter) try(what string, do func() error) {
	if r.now().Before(r.due[what]) {
		return
	}
	delete(r.due, what)
	if err := do(); err != nil {
		r.due[what] = r.now().Add(tryAgain)
		r.log.Error(what, "error", err)
	}
}

// deletePod, but never another one of that name.
func (r *Reporter) deletePod(ctx context.Context, pod agent.Condemned) error {
	path := "/api/v1/namespaces/" + url.PathEscape(pod.Namespace) + "/pods/" + url.PathEscape(pod.Name)
	err := r.client.call(ctx, http.MethodDelete, path, map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]any{"uid": pod.UID},
	}, nil)
	if err != nil && !refusedWith(err, http.StatusNotFound, http.StatusConflict) {
		return err
	}
	r.deleted[pod.UID] = true
	if err == nil {
		r.log.Warn("deleted", "pod", pod.UID, "namespace", pod.Namespace, "name", pod.Name, "reason", pod.Reason, "detail", pod.Detail)
		// For people: the pod is deleted whether or not they are told.
		about := map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": pod.Namespace, "name": pod.Name, "uid": pod.UID}
		r.try("tell of pod "+pod.Namespace+"/"+pod.Name, func() error {
			return r.event(ctx, pod.Namespace, about, "Warning", pod.Reason, pod.Detail)
		})
	}
	return nil
}

// tell people that a GPU is quarantined, for as long as it is, and when it is not any more.
func (r *Reporter) tell(ctx context.Context, gpu agent.GPUStatus) error {
	last, known := r.told[gpu.UUID]
	// kubectl describe node looks for its events by this uid.
	node := map[string]any{"apiVersion": "v1", "kind": "Node", "name": r.node, "uid": r.node}
	if gpu.Quarantine == nil {
		if !known {
			return nil
		}
		if err := r.event(ctx, "default", node, "Normal", "SeatReturned", "GPU "+gpu.UUID+" is no longer quarantined"); err != nil {
			return err
		}
		delete(r.told, gpu.UUID)
		return nil
	}
	if known && last.quarantine == *gpu.Quarantine && r.now().Sub(last.at) < tellAgain {
		return nil
	}
	message := "GPU " + gpu.UUID + ": " + gpu.Quarantine.Reason + ": " + gpu.Quarantine.Detail
	if gpu.Quarantine.ByOperator {
		message += ". It stays so until `firepool-node clear " + gpu.UUID + "` on the node"
	}
	if err := r.event(ctx, "default", node, "Warning", "SeatQuarantined", message); err != nil {
		return err
	}
	r.told[gpu.UUID] = telling{*gpu.Quarantine, r.now()}
	return nil
}

// maxMessage: the API server refuses longer ones.
const maxMessage = 1_024

func (r *Reporter) event(ctx context.Context, namespace string, about map[string]any, kind, reason, message string) error {
	now := r.now().UTC().Format(time.RFC3339)
	return r.client.call(ctx, http.MethodPost, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/events", map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"generateName": "firepool-node.", "namespace": namespace},
		"involvedObject": about, "type": kind, "reason": reason, "message": message[:min(len(message), maxMessage)],
		"source":         map[string]any{"component": "firepool-node", "host": r.node},
		"firstTimestamp": now, "lastTimestamp": now, "count": 1,
	}, nil)
}

func refusedWith(err error, codes ...int) bool {
	var refused refusal
	return errors.As(err, &refused) && slices.Contains(codes, refused.code)
}
