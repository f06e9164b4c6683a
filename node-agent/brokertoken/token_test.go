package brokertoken

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// Made by src/token/token.ts, with a key that nobody has any more.
const (
	key    = "UPts0aGwtbqGYvzqfscSYhfNlVZvDCvx0wrZsc+Bnfs="
	signed = "eyJ2IjoxLCJwb2QiOiJwb29sLTAtMCIsInNjb3BlIjoibGVhc2UiLCJlcG9jaCI6MywibGVhc2VJZCI6ImEtbGVhc2UiLCJleHBpcmVzQXRNcyI6MTgwMDAwMDAwMDAwMH0." +
		"gPgyDKl45wm9ZkKQJ_7ZSqz3LtFuLhcj7SC_qJA353ja-4kuZ99WjAGwZnHdQdPyitnKlef2DbWIYFeaRg_vBg"
)

func TestATokenOfTheBrokerIsRead(t *testing.T) {
	keys, err := ParseKeys("other=" + key + ",jobs=" + key)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := keys.Verify("jobs", "Bearer "+signed)
	if err != nil || claims.Pod != "pool-0-0" {
		t.Fatalf("%+v, %v", claims, err)
	}
	if end := time.UnixMilli(1_800_000_000_000); claims.Expired(end.Add(-time.Millisecond)) || !claims.Expired(end) {
		t.Fatal("it expires when it says")
	}
}

func TestATokenOfNobodyIsRefused(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ParseKeys("jobs=" + key + "\nmine=" + base64.StdEncoding.EncodeToString(public))
	if err != nil {
		t.Fatal(err)
	}
	sign := func(claims any) string {
		text, _ := json.Marshal(claims)
		head := base64.RawURLEncoding.EncodeToString(text)
		return head + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(private, []byte(head)))
	}
	good := sign(Claims{V: 1, Pod: "p"})
	if _, err := keys.Verify("mine", "bearer "+good); err != nil {
		t.Fatal(err)
	}
	head, tail, _ := strings.Cut(signed, ".")
	for name, c := range map[string]struct {
		namespace, authorization string
		want                     error
	}{
		"none":                      {"jobs", "", ErrMissing},
		"another scheme":            {"jobs", "Basic " + signed, ErrMissing},
		"another namespace":         {"elsewhere", "Bearer " + signed, ErrUnsigned},
		"another broker's":          {"jobs", "Bearer " + good, ErrUnsigned},
		"a claim was changed":       {"jobs", "Bearer " + head[:len(head)-2] + "A." + tail, ErrUnsigned},
		"the signature was changed": {"jobs", "Bearer " + head + ".A" + tail[1:], ErrUnsigned},
		"no signature":              {"jobs", "Bearer " + head, ErrUnsigned},
		"another version":           {"mine", "Bearer " + sign(Claims{V: 2, Pod: "p"}), ErrUnsigned},
		"no pod":                    {"mine", "Bearer " + sign(Claims{V: 1}), ErrUnsigned},
		"too long":                  {"mine", "Bearer " + sign(Claims{V: 1, Pod: strings.Repeat("p", maxToken)}), ErrUnsigned},
	} {
		if _, err := keys.Verify(c.namespace, c.authorization); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"jobs", "=" + key, "jobs=AAAA", "jobs=" + key + "=" + key} {
		if _, err := ParseKeys(text); err == nil {
			t.Errorf("%q was taken for keys", text)
		}
	}
}

// The names are those of src/kubernetes/names.ts, whose tests have the long one too.
func TestNames(t *testing.T) {
	const long = "a-pool-whose-name-is-so-long-that-no-label-could-hold.3-it-00017-2"
	for _, c := range []struct {
		kubeName, pod string
		want          bool
	}{
		{"pool-0-0-g2", "pool-0-0", true},
		{"pool-0-0-g12", "pool-0-0", true},
		{"a-pool-whose-name-is-so-long-that-no-label-could-h-4e7b05cb-g12", long, true},
		{"a-pool-whose-name-is-so-long-that-no-label-could-h-4e7b05cb-g12", long + "0", false},
		{"pool-0-1-g2", "pool-0-0", false},
		{"pool-0-0", "pool-0-0", false},
		{"pool-0-0-g1-g2", "pool-0-0", false},
		{"pool-0-0-gx", "pool-0-0", false},
	} {
		if got := Names(c.kubeName, c.pod); got != c.want {
			t.Errorf("%s is the pod of %s: %v", c.kubeName, c.pod, got)
		}
	}
}
