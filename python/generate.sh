#!/usr/bin/env bash
# Generates python/src/sparseagg/v1/*_pb2.py from the proto files; what it writes is committed.
#
#   python/generate.sh           writes the files
#   python/generate.sh --check   fails when the committed files are not what it would write
#
# Made with protoc 3.21.12, deliberately: what that writes imports under every protobuf runtime from 3.20 on, whereas
# newer generators write a check that refuses older runtimes.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted="libprotoc 3.21.12"
if [[ $(protoc --version) != "$wanted" ]]; then
  echo "generate.sh: needs $wanted (Debian 12's protobuf-compiler), found $(protoc --version)" >&2
  exit 1
fi

out=python/src
if [[ ${1-} == --check ]]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi

protoc --proto_path=proto --python_out="$out" proto/sparseagg/v1/*.proto
# Nobody asks a runtime in pure Python for the bytes of one descriptor.
sed -i '/^if _descriptor._USE_C_DESCRIPTORS == False:$/,/^# @@protoc_insertion_point(module_scope)$/d' "$out"/sparseagg/v1/*_pb2.py

if [[ ${1-} == --check ]]; then
  status=0
  for file in "$out"/sparseagg/v1/*_pb2.py; do
    committed=python/src/sparseagg/v1/$(basename "$file")
    if ! diff -u "$committed" "$file"; then
      echo "generate.sh: $committed is not what the proto files give; run python/generate.sh" >&2
      status=1
    fi
  done
  exit "$status"
fi
