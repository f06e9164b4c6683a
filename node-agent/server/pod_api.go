package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode"

	"firepool/node-agent/agent"
	"firepool/node-agent/arbiter"
)

// The shapes of the pods' API, version 1. README.md has them as a table.
const apiVersion = 1

const (
	// maxBody: a request is a handful of numbers.
	maxBody = 16 << 10
	// maxRequestID: a uuid and a counter, with room.
	maxRequestID = 128
	// maxTenant: as long as a broker lets one be.
	maxTenant = 128
)

type seatRequest struct {
	V          int    `json:"v"`
	RequestID  string `json:"requestId"`
	LeaseEpoch uint64 `json:"leaseEpoch"`
	GPUs       int    `json:"gpus"`
	Priority   int    `json:"priority"`
	Tenant     string `json:"tenant"`
	WaitMs     int64  `json:"waitMs"`
}

type seatGrant struct {
	V         int      `json:"v"`
	SeatEpoch uint64   `json:"seatEpoch"`
	UUIDs     []string `json:"uuids"`
}

type seatRelease struct {
	V         int    `json:"v"`
	SeatEpoch uint64 `json:"seatEpoch"`
}

type seatReleased struct {
	V    int    `json:"v"`
	Xids []int  `json:"xids"`
	Lost string `json:"lost,omitempty"`
}

type seatEnded struct {
	V      int    `json:"v"`
	Lost   string `json:"lost,omitempty"`
	Banned string `json:"banned,omitempty"`
}

type seatSuspended struct {
	V         int    `json:"v"`
	HostBytes uint64 `json:"hostBytes"`
}

type done struct {
	V int `json:"v"`
}

type standing struct {
	V        int            `json:"v"`
	Pod      arbiter.PodUID `json:"pod"`
	Tenant   string         `json:"tenant"`
	Held     *seatGrant     `json:"held"`
	ZeroVRAM arbiter.Sign   `json:"zeroVram"`
	Why      string         `json:"why,omitempty"`
	Banned   string         `json:"banned,omitempty"`
	// Suspended is the seat epoch under which the pod's job was suspended.
	Suspended uint64 `json:"suspended,omitempty"`
}

type failure struct {
	V     int             `json:"v"`
	Error arbiter.Problem `json:"error"`
}

// The codes that are not the arbiter's.
const (
	ShuttingDown arbiter.Code = "ShuttingDown"
	TokenRefused arbiter.Code = "TokenRefused"
)

var statusOf = map[arbiter.Code]int{
	arbiter.InvalidRequest: http.StatusBadRequest, arbiter.IdentityMismatch: http.StatusForbidden,
	arbiter.UngrantedUse: http.StatusForbidden, TokenRefused: http.StatusForbidden, arbiter.UnknownPod: http.StatusNotFound, arbiter.UnknownGPU: http.StatusNotFound,
	arbiter.StaleLease: http.StatusConflict, arbiter.StaleSeat: http.StatusConflict, arbiter.HoldAndWait: http.StatusConflict,
	arbiter.Superseded: http.StatusConflict, arbiter.QueueFull: http.StatusTooManyRequests,
	arbiter.NotSuspended: http.StatusConflict, agent.CheckpointFailed: http.StatusInternalServerError,
	arbiter.SeatUnavailable: http.StatusServiceUnavailable, arbiter.SeatSetSick: http.StatusServiceUnavailable, ShuttingDown: http.StatusServiceUnavailable,
}

func (p *Pods) handler(identify func(r *http.Request) (caller, error)) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, serve func(ctx context.Context, asks caller, r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			// Each request, not each connection: a process may hand its connection to another.
			asks, err := identify(r)
			var answer any
			if err == nil {
				r.Body = http.MaxBytesReader(w, r.Body, maxBody)
				answer, err = serve(r.Context(), asks, r)
			}
			write(w, answer, err)
			p.Log.Debug("answered", "pod", asks.pod, "request", pattern)
		})
	}
	handle("POST /v1/seats", p.request)
	handle("POST /v1/seats/release", func(ctx context.Context, asks caller, r *http.Request) (any, error) {
		var body seatRelease
		if err := read(r, &body, func() int { return body.V }); err != nil {
			return nil, err
		}
		done, err := p.Agent.Release(ctx, asks.pod, body.SeatEpoch)
		return seatReleased{apiVersion, append([]int{}, done.Xids...), done.Lost}, err
	})
	handle("POST /v1/seats/ended", func(ctx context.Context, asks caller, r *http.Request) (any, error) {
		var body seatRelease
		if err := read(r, &body, func() int { return body.V }); err != nil {
			return nil, err
		}
		ended, err := p.Agent.Ended(ctx, asks.pod, body.SeatEpoch)
		return seatEnded{apiVersion, ended.Lost, ended.Banned}, err
	})
	handle("POST /v1/seats/suspend", func(ctx context.Context, asks caller, r *http.Request) (any, error) {
		var body seatRelease
		if err := read(r, &body, func() int { return body.V }); err != nil {
			return nil, err
		}
		hostBytes, err := p.Agent.Suspend(ctx, asks.pod, body.SeatEpoch)
		return seatSuspended{apiVersion, hostBytes}, err
	})
	handle("POST /v1/seats/resume", func(ctx context.Context, asks caller, r *http.Request) (any, error) {
		var body seatRelease
		if err := read(r, &body, func() int { return body.V }); err != nil {
			return nil, err
		}
		return done{apiVersion}, p.Agent.Resume(ctx, asks.pod, body.SeatEpoch)
	})
	handle("GET /v1/seats", func(ctx context.Context, asks caller, _ *http.Request) (any, error) {
		found, err := p.Agent.Stand(ctx, asks.pod)
		answer := standing{V: apiVersion, Pod: asks.pod, Tenant: found.Pod.Tenant, ZeroVRAM: found.ZeroVRAM, Why: found.Why, Banned: found.Pod.Banned}
		if found.Pod.Suspended != nil {
			answer.Suspended = found.Pod.Suspended.SeatEpoch
		}
		if found.Held != nil {
			answer.Held = &seatGrant{apiVersion, found.Held.SeatEpoch, found.Held.UUIDs}
		}
		return answer, err
	})
	return mux
}

func (p *Pods) request(ctx context.Context, asks caller, r *http.Request) (any, error) {
	var body seatRequest
	if err := read(r, &body, func() int { return body.V }); err != nil {
		return nil, err
	}
	if body.RequestID == "" || len(body.RequestID) > maxRequestID || body.WaitMs < 0 || body.WaitMs > arbiter.MaxWaitMs {
		return nil, invalid(fmt.Sprintf("a request has a requestId of 1 to %d bytes and waitMs from 0 to %d", maxRequestID, arbiter.MaxWaitMs))
	}
	if len(body.Tenant) > maxTenant || strings.ContainsFunc(body.Tenant, unicode.IsControl) {
		return nil, invalid(fmt.Sprintf("a tenant has at most %d bytes, and no control characters", maxTenant))
	}
	visible, err := p.Visible(asks.pid)
	if err != nil {
		return nil, arbiter.Problem{Code: arbiter.SeatUnavailable, Message: "the GPUs that the pod sees cannot be read: " + err.Error(), Remedy: "ask again"}
	}
	grant, err := p.Agent.Request(ctx, arbiter.Requested{
		ID: body.RequestID, Pod: asks.pod, LeaseEpoch: body.LeaseEpoch, Count: body.GPUs, Priority: body.Priority, Tenant: body.Tenant, Visible: visible,
	}, body.WaitMs)
	return seatGrant{apiVersion, grant.SeatEpoch, grant.UUIDs}, err
}

func read(r *http.Request, body any, version func() int) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return invalid("the body cannot be read: " + err.Error())
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(body); err != nil {
		return invalid("the body is not the JSON that is expected: " + err.Error())
	}
	if version() != apiVersion {
		return invalid(fmt.Sprintf("version %d of the request; this agent knows %d", version(), apiVersion))
	}
	return nil
}

func invalid(message string) arbiter.Problem {
	return arbiter.Problem{Code: arbiter.InvalidRequest, Message: message, Remedy: "see the table of the API in node-agent/README.md"}
}

func write(w http.ResponseWriter, answer any, err error) {
	status := http.StatusOK
	if err != nil {
		var problem arbiter.Problem
		if !errors.As(err, &problem) {
			problem = arbiter.Problem{Code: arbiter.SeatUnavailable, Message: err.Error(), Remedy: "ask again"}
		}
		if errors.Is(err, agent.ErrStopped) {
			problem = arbiter.Problem{Code: ShuttingDown, Message: err.Error(), Remedy: "keep what is held; ask again when the agent is back"}
		}
		known := false
		if status, known = statusOf[problem.Code]; !known {
			status = http.StatusInternalServerError
		}
		answer = failure{apiVersion, problem}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // who has left is asked for by the next request
}
