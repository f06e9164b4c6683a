// Package brokertoken checks the tokens that a broker signs for one pod (src/token/token.ts has the other side), and whether a pod of
// the cluster is the one that a token names.
package brokertoken

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Why a token is refused.
var (
	ErrMissing  = errors.New("the call has no token")
	ErrUnsigned = errors.New("the token is not one that a broker of the pod's namespace signed")
	ErrExpired  = errors.New("the token has expired, and the pod has shown none before")
	ErrOtherPod = errors.New("the token is for another pod")
)

// maxToken: claims are under 500 bytes.
const maxToken = 4_096

// Claims of a token, as far as they matter here.
type Claims struct {
	V           int     `json:"v"`
	Pod         string  `json:"pod"`
	ExpiresAtMs float64 `json:"expiresAtMs"` // of the wall clock, since 1970
}

// Expired by the clock of this node.
func (c Claims) Expired(now time.Time) bool { return float64(now.UnixMilli()) >= c.ExpiresAtMs }

// Keys are the brokers' public keys, by the namespace of their pods.
type Keys map[string][]ed25519.PublicKey

// ParseKeys reads NAMESPACE=KEY with commas between, the key as in a pod's FIREPOOL_BROKER_KEY: the base64 of its 32 bytes.
func ParseKeys(text string) (Keys, error) {
	keys := Keys{}
	for _, entry := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' || r == ' ' }) {
		namespace, key, found := strings.Cut(entry, "=")
		raw, err := base64.StdEncoding.DecodeString(key)
		if !found || namespace == "" || err != nil || len(raw) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("%q is not NAMESPACE=KEY with the base64 of an Ed25519 public key", entry)
		}
		keys[namespace] = append(keys[namespace], raw)
	}
	return keys, nil
}

// Verify the authorization header of a call from a pod of the namespace. What the claims say is for the caller to judge.
func (k Keys) Verify(namespace, authorization string) (Claims, error) {
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "bearer") {
		return Claims{}, ErrMissing
	}
	head, tail, _ := strings.Cut(token, ".")
	signature, err := base64.RawURLEncoding.DecodeString(tail)
	if err != nil || len(token) > maxToken {
		return Claims{}, ErrUnsigned
	}
	for _, key := range k[namespace] {
		if !ed25519.Verify(key, []byte(head), signature) {
			continue
		}
		var claims Claims
		text, err := base64.RawURLEncoding.DecodeString(head)
		if err != nil || json.Unmarshal(text, &claims) != nil || claims.V != 1 || claims.Pod == "" {
			return Claims{}, ErrUnsigned
		}
		return claims, nil
	}
	return Claims{}, ErrUnsigned
}

const (
	// A pod's name is its host name as well.
	maxPodName = 63
	hashChars  = 8
)

var generationSuffix = regexp.MustCompile(`-g[0-9]+$`)

// Names says whether the pod of this name in the cluster is the pod that a token names: the broker adds the generation to its own
// name, and shortens what is too long (src/kubernetes/names.ts).
func Names(kubeName, pod string) bool {
	suffix := generationSuffix.FindString(kubeName)
	if suffix == "" {
		return false
	}
	if len(pod)+len(suffix) <= maxPodName {
		return kubeName == pod+suffix
	}
	digest := sha256.Sum256([]byte(pod))
	kept := strings.TrimRightFunc(pod[:maxPodName-len(suffix)-hashChars-1], func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return kubeName == kept+"-"+hex.EncodeToString(digest[:])[:hashChars]+suffix
}
