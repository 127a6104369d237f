#!/usr/bin/env bash
# A first round over HTTP: first_round.sh http://HOST:PORT
set -euo pipefail
call() { curl --fail-with-body -sS "$@"; } # an error has the place and the value
json='content-type: application/json'
url=$1/v1/$(call "$1/v1/rounds" -H "$json" -d '{"spec": {"tensors": [{"name": "w", "dtype": "float32", "numRows": 50000}]}}' |
  sed 's/.*"name":"\(rounds\/[^"]*\)".*/\1/')

submit() { # CLIENT KEYS VALUES
  local ids="\"clientId\": \"$1\", \"submissionId\": \"one\""
  local slice="{\"tensor\": \"w\", \"keys\": [$2], \"values\": [$3], \"valueEncoding\": \"float32\"}"
  call "$url/chunks?numbers=1" -H "$json" -d "{$ids, \"last\": true, \"slices\": [$slice]}"
  call "$url/submissions" -H "$json" -d "{$ids}"
}
submit a '3, 9' '1, 2' >&2
submit b '9' '10' >&2

call -X POST "$url:close" >&2
call "$url:wait" >&2
page=$(call "$url/result?numbers=1")
column() { grep -o "\"$1\":\[[^]]*" <<<"$page" | cut -d '[' -f 2 | tr ',' '\n'; }
paste -d ' ' <(column keys) <(column values)
