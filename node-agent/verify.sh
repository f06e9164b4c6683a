#!/bin/sh
# Format, vet and tests of the node agent; with the race detector where there is a C compiler. Without Go it says so and succeeds:
# nobody needs Go to work on the rest.
set -eu
cd "$(dirname "$0")"
if ! command -v go >/dev/null; then
  echo 'node-agent: skipped, there is no go on the PATH'
  exit 0
fi
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
  echo "node-agent: gofmt would change $unformatted"
  exit 1
fi
# The warnings are those of the generated NVML bindings.
export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g -Wno-deprecated-declarations}"
race=''
if command -v gcc >/dev/null; then race='-race'; fi
go vet ./...
CGO_ENABLED=0 go vet ./...
go test ./arbiter # it has one goroutine: the detector would only make its histories slower
go test $race $(go list ./... | grep -v /arbiter)
