#!/usr/bin/env bash
# A first round over HTTP: first_round.sh http://HOST:PORT
set -euo pipefail
call() { curl --fail-with-body -sS "$@"; } # an error has the place and the value
json='content-type: application/json'
url=$1/v1/$(call "$1/v1/rounds" -H "$json" -d '{"spec": {"tensors": [{"name": "w", "dtype": "float32", "numRows": 50000}]}}' |
  sed 's/.*"name":"\(rounds\/[^"]*\)".*/\1/')

submit() { # CLIENT BYTES_OF_KEYS KEYS_AND_VALUES: uint32 and then float32, little-endian
  local query="client_id=$1&submission_id=one&last=true&tensor=w&key_encoding=U32&key_bytes=$2"
  printf '%b' "$3" | call "$url/chunks?$query" -H 'content-type: application/octet-stream' --data-binary @-
  call "$url/submissions" -H "$json" -d "{\"clientId\": \"$1\", \"submissionId\": \"one\"}"
}
submit a 8 '\x3\0\0\0\x9\0\0\0\0\0\x80\x3f\0\0\0\x40' >&2 # 3, 9; 1.0, 2.0
submit b 4 '\x9\0\0\0\0\0\x20\x41' >&2                    # 9; 10.0

call -X POST "$url:close" >&2
call "$url:wait" >&2
page=$(call "$url/result")
column() { grep -o "\"$1\":\"[^\"]*" <<<"$page" | cut -d '"' -f 4 | base64 -d | od -An -v -w4 "$2" --endian=little; }
paste <(column keys -tu4) <(column values -tf4) | awk '{ print $1, $2 }'
