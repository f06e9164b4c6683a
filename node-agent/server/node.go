package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"firepool/node-agent/agent"
	"firepool/node-agent/arbiter"
)

// NodeHandler is what the node's network may read: health, metrics and status. Nothing can be changed here.
func NodeHandler(a *agent.Agent) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := a.Status(); !ok {
			http.Error(w, "the arbiter does not answer", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		status, ok := a.Status()
		if !ok {
			http.Error(w, "the arbiter does not answer", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		fmt.Fprint(w, metrics(status))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		status, ok := a.Status()
		if !ok {
			http.Error(w, "the arbiter does not answer", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(status)
	})
	return mux
}

// OperatorHandler is for root of the node, over a socket that only root can reach. Pods are registered here where there is no kubelet.
func OperatorHandler(p *Pods) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/gpus/{uuid}/clear", func(w http.ResponseWriter, r *http.Request) {
		write(w, done{apiVersion}, p.Agent.Clear(r.Context(), r.PathValue("uuid")))
	})
	mux.HandleFunc("PUT /v1/pods/{uid}", func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		var body struct {
			V         int    `json:"v"`
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Tenant    string `json:"tenant"`
		}
		err := read(r, &body, func() int { return body.V })
		if err == nil {
			err = p.Open(arbiter.PodJoined{UID: arbiter.PodUID(r.PathValue("uid")), Namespace: body.Namespace, Name: body.Name, Tenant: body.Tenant})
		}
		write(w, done{apiVersion}, err)
	})
	mux.HandleFunc("DELETE /v1/pods/{uid}", func(w http.ResponseWriter, r *http.Request) {
		write(w, done{apiVersion}, p.Close(arbiter.PodUID(r.PathValue("uid"))))
	})
	mux.Handle("GET /", NodeHandler(p.Agent))
	return mux
}

// metrics in Prometheus' text format. Milliseconds are shown as seconds, its base unit.
func metrics(s agent.Status) string {
	var out strings.Builder
	family := func(name, kind, help string) {
		fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	family("firepool_node_gpu_phase", "gauge", "1 for the phase that the GPU is in.")
	for _, g := range s.GPUs {
		for _, phase := range []arbiter.Phase{arbiter.Free, arbiter.Held, arbiter.Verifying, arbiter.Quarantined} {
			value := 0
			if g.Phase == phase {
				value = 1
			}
			fmt.Fprintf(&out, "firepool_node_gpu_phase{uuid=%s,phase=%s} %d\n", label(g.UUID), label(string(phase)), value)
		}
	}
	family("firepool_node_gpu_quarantined", "gauge", "1 with the reason why the GPU is not granted.")
	for _, g := range s.GPUs {
		if g.Quarantine != nil {
			fmt.Fprintf(&out, "firepool_node_gpu_quarantined{uuid=%s,reason=%s} 1\n", label(g.UUID), label(g.Quarantine.Reason))
		}
	}
	family("firepool_node_seat_seconds_total", "counter", "Time that a tenant held a GPU, with its hand-back: account, or account/tenant.")
	for _, tenant := range slices.Sorted(maps.Keys(s.SeatMs)) {
		fmt.Fprintf(&out, "firepool_node_seat_seconds_total{tenant=%s} %.3f\n", label(tenant), float64(s.SeatMs[tenant])/1000)
	}
	family("firepool_node_suspended_bytes", "gauge", "Device memory of suspended jobs that is in the host's memory.")
	for _, tenant := range slices.Sorted(maps.Keys(s.SuspendedBytes)) {
		fmt.Fprintf(&out, "firepool_node_suspended_bytes{tenant=%s} %d\n", label(tenant), s.SuspendedBytes[tenant])
	}
	family("firepool_node_infrastructure_seconds_total", "counter", "Time that a GPU was quarantined or not yet known.")
	fmt.Fprintf(&out, "firepool_node_infrastructure_seconds_total %.3f\n", float64(s.InfrastructureMs)/1000)
	family("firepool_node_requests_waiting", "gauge", "Requests for seats that wait.")
	fmt.Fprintf(&out, "firepool_node_requests_waiting %d\n", s.Waiting)
	family("firepool_node_pods", "gauge", "Pods that are registered.")
	fmt.Fprintf(&out, "firepool_node_pods %d\n", s.Pods)
	family("firepool_node_seat_epoch", "counter", "The last seat epoch that was granted.")
	fmt.Fprintf(&out, "firepool_node_seat_epoch %d\n", s.SeatEpoch)
	family("firepool_node_reports_total", "counter", "What happened since the agent started, by kind.")
	for _, kind := range slices.Sorted(maps.Keys(s.Counts)) {
		fmt.Fprintf(&out, "firepool_node_reports_total{kind=%s} %d\n", label(kind), s.Counts[kind])
	}
	return out.String()
}

// label quotes as the format asks: backslash, quote and line feed, and nothing else.
func label(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}
