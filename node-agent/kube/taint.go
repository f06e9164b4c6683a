package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"firepool/node-agent/agent"
	"firepool/node-agent/arbiter"
)

// TaintKey of the taints that the agent makes; the value is the quarantine's reason.
const TaintKey = "node.firepool.dev/quarantined"

const taintGroup = "resource.k8s.io"

// taintVersions that have DeviceTaintRules, the newest first. In 1.36 it is v1beta2, which is off by default.
var taintVersions = []string{"v1", "v1beta2", "v1alpha3"}

// condemns: what only an operator lifts is a device that failed. Other quarantines end by themselves, within seconds.
func condemns(q *arbiter.Quarantine) bool {
	return q != nil && slices.Contains([]string{"xid", "reset"}, q.Reason)
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// ruleName is the same at each try, and no other GPU's.
func ruleName(uuid string) string {
	return "firepool-" + strings.Trim(notInNames.ReplaceAllString(strings.ToLower(uuid), "-"), "-")
}

// taint keeps the scheduler from giving a failed device to new claims. Pods that have it stay: the one whose job was lost is deleted by
// name, and those that share its seat set have the set's other GPUs.
func (r *Reporter) taint(ctx context.Context, gpu agent.GPUStatus) error {
	wanted := condemns(gpu.Quarantine)
	var err error
	if wanted {
		err = r.createRule(ctx, gpu)
	} else {
		err = r.withVersion(func(_, collection string) error {
			return r.client.call(ctx, http.MethodDelete, collection+"/"+ruleName(gpu.UUID), nil, nil)
		})
	}
	if err != nil {
		return err
	}
	r.tainted[gpu.UUID] = wanted
	return nil
}

func (r *Reporter) createRule(ctx context.Context, gpu agent.GPUStatus) error {
	device, err := r.device(ctx, gpu.UUID)
	if err != nil {
		return err
	}
	found := false
	err = r.withVersion(func(version, collection string) error {
		err := r.client.call(ctx, http.MethodPost, collection, map[string]any{
			"apiVersion": taintGroup + "/" + version, "kind": "DeviceTaintRule", "metadata": map[string]any{"name": ruleName(gpu.UUID)},
			"spec": map[string]any{"deviceSelector": device, "taint": map[string]any{"key": TaintKey, "value": gpu.Quarantine.Reason, "effect": "NoSchedule"}},
		}, nil)
		found = found || !refusedWith(err, http.StatusNotFound)
		if refusedWith(err, http.StatusConflict) {
			return nil // an agent before this one has made it
		}
		return err
	})
	if err == nil && !found {
		return errors.New("the API server has no DeviceTaintRules: it needs the feature gate DRADeviceTaintRules and the API resource.k8s.io/v1beta2")
	}
	return err
}

// withVersion of the API that the server has. Where it has none, nothing can be there.
func (r *Reporter) withVersion(do func(version, collection string) error) error {
	versions := taintVersions
	if r.version != "" {
		versions = []string{r.version}
	}
	for _, version := range versions {
		err := do(version, "/apis/"+taintGroup+"/"+version+"/devicetaintrules")
		if err == nil {
			r.version = version
		}
		if !refusedWith(err, http.StatusNotFound) {
			return err
		}
	}
	return nil
}

// device finds what the DRA driver of this node calls the GPU: rules select by driver, pool and name, and not by attributes.
func (r *Reporter) device(ctx context.Context, uuid string) (map[string]string, error) {
	var found struct {
		Items []struct {
			Spec struct {
				Driver string
				Pool   struct{ Name string }
				// What this reads is all that it knows of a device.
				Devices []struct {
					Name       string
					Attributes map[string]struct{ String *string }
				}
			}
		}
	}
	path := "/apis/" + taintGroup + "/v1/resourceslices?fieldSelector=" + url.QueryEscape("spec.nodeName="+r.node)
	if err := r.client.call(ctx, http.MethodGet, path, nil, &found); err != nil {
		return nil, err
	}
	for _, slice := range found.Items {
		for _, device := range slice.Spec.Devices {
			for name, value := range device.Attributes {
				_, attribute, qualified := strings.Cut(name, "/")
				if !qualified {
					attribute = name
				}
				if attribute == "uuid" && value.String != nil && *value.String == uuid {
					return map[string]string{"driver": slice.Spec.Driver, "pool": slice.Spec.Pool.Name, "device": device.Name}, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("no ResourceSlice of node %s has a device whose attribute uuid is %s: only devices of a DRA driver can be tainted", r.node, uuid)
}
