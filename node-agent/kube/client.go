// Package kube tells the cluster what the agent has found: pods that must go, devices that nobody may be given, and events for people.
package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// InCluster stands for the API server of the cluster in which the agent's own pod is.
	InCluster = "in-cluster"
	// CredentialsFolder is where a pod finds its service account's token, and the certificate of the API server's authority.
	CredentialsFolder = "/var/run/secrets/kubernetes.io/serviceaccount"
	// callTimeout: an API server that takes longer is asked again later.
	callTimeout = 10 * time.Second
	// maxAnswer bounds what is read: the slices of one node are some kilobytes for each device.
	maxAnswer = 8 << 20
)

// Client of an API server. It has the few calls that the agent needs.
type Client struct {
	server string
	folder string
	http   *http.Client
}

// NewClient takes the API server's URL, or InCluster, and the folder with `token` and, for https, `ca.crt`.
func NewClient(server, folder string) (*Client, error) {
	if server == InCluster {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, fmt.Errorf("-kube=%s outside of a pod: there is no KUBERNETES_SERVICE_HOST", InCluster)
		}
		server = "https://" + net.JoinHostPort(host, port)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
	if strings.HasPrefix(server, "https:") {
		text, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
		if err != nil {
			return nil, err
		}
		authorities := x509.NewCertPool()
		if !authorities.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("no certificate in %s/ca.crt", folder)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}
	}
	return &Client{strings.TrimSuffix(server, "/"), folder, &http.Client{Transport: transport, Timeout: callTimeout}}, nil
}

// refusal is what the API server says no with.
type refusal struct {
	code            int
	reason, message string
}

func (r refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.code, r.reason, r.message) }

// call returns a refusal for every answer of 300 and above.
func (c *Client) call(ctx context.Context, method, path string, body, answer any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	// Read each time: the kubelet replaces it long before it expires.
	token, err := os.ReadFile(filepath.Join(c.folder, "token"))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		var status struct{ Reason, Message string }
		if json.Unmarshal(said, &status) != nil || status.Message == "" {
			status.Message = strings.TrimSpace(string(said[:min(len(said), 200)]))
		}
		return refusal{response.StatusCode, status.Reason, status.Message}
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(said, answer)
}
