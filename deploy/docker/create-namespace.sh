#!/bin/sh
# Creates TEMPORAL_NAMESPACE on the server at TEMPORAL_ADDRESS, unless it is there. TEMPORAL_CLI is another CLI than the PATH's.
set -eu
cli=${TEMPORAL_CLI:-temporal}

"$cli" operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
  "$cli" operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention 72h
