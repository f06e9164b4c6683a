package server

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/brokertoken"
	"firepool/node-agent/measure"
)

// Brokers is what has to be known to serve pods that have no volume.
type Brokers struct {
	Keys brokertoken.Keys
	// LogsFolder is the kubelet's, with a folder for each pod of the node.
	LogsFolder string
}

// ByToken serves pods over TCP that cannot mount the volume. Who asks is the kernel's word here as well: a token is worth nothing to
// another pod. It says that a broker vouches for the pod, and that its runner asks: jobs are in the same network, and never see it.
func (p *Pods) ByToken(brokers Brokers) http.Handler {
	return p.handler(func(r *http.Request) (caller, error) {
		asks, err := p.connected(r)
		if err != nil {
			return caller{}, mismatch("the caller's pod is not known: "+err.Error(),
				"call from a pod of this node, by an address that nothing translates on the way (a Service with internalTrafficPolicy: Local)")
		}
		namespace, name, err := measure.PodName(brokers.LogsFolder, asks.pod)
		if err != nil {
			return caller{}, mismatch("the caller's name is not known: "+err.Error(), "the agent needs the kubelet's /var/log/pods")
		}
		claims, err := brokers.Keys.Verify(namespace, r.Header.Get("Authorization"))
		if err == nil && !brokertoken.Names(name, claims.Pod) {
			err = brokertoken.ErrOtherPod
		}
		known := p.Agent.Knows(asks.pod)
		if err == nil && !known && claims.Expired(time.Now()) {
			err = brokertoken.ErrExpired
		}
		if err != nil {
			return caller{}, arbiter.Problem{Code: TokenRefused, Message: err.Error() + ", pod " + namespace + "/" + name,
				Remedy: "send the token of the pod's lease; the agent's -broker-keys must have the key of that namespace's broker"}
		}
		if !known {
			err = p.Agent.Join(arbiter.PodJoined{UID: asks.pod, Namespace: namespace, Name: name, Tenant: namespace, NoVolume: true})
		}
		return asks, err
	})
}

// connected is who has the other end of the connection.
func (p *Pods) connected(r *http.Request) (caller, error) {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return caller{}, err
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return caller{}, errors.New("not a TCP connection")
	}
	// One look through the kernel's tables at a time: whoever asks without a token costs a core at most.
	p.looking.Lock()
	defer p.looking.Unlock()
	remote = netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())
	pod, pid, err := measure.PodOfPeer(p.ProcRoot, p.Identify, remote, uint16(local.Port))
	return caller{pod, pid}, err
}
