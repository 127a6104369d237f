#!/usr/bin/env bash
# A federated client of curl and the shell: curl_client.sh URL CLIENT LABEL
#
# Leases a task, sends keys 1, 5 and 8 with the values of the file `rows`, and completes the task.
set -euo pipefail
url=$1 client=$2 rows=$3

post() { # PATH JSON
  curl --fail-with-body --silent --show-error --retry 5 -H 'content-type: application/json' -d "$2" "$url$1"
}
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" | head -n 1; }

task=$(post /v1/tasks:lease "{\"clientId\": \"$client\", \"leaseId\": \"lease\", \"labels\": [\"curl\"], \"timeout\": \"20s\"}")
name=$(grep -o '"name":"tasks/[^"]*"' <<<"$task" | field name)
round=$(field round <<<"$task")

# Three keys of 4 bytes in little-endian, then the rows.
{
  printf '\1\0\0\0\5\0\0\0\10\0\0\0'
  cat "$rows"
} | curl --fail-with-body --silent --show-error --retry 5 -H 'content-type: application/octet-stream' --data-binary @- \
  "$url/v1/$round/chunks?client_id=$client&submission_id=one&last=true&weight=3&tensor=logits&key_encoding=U32&key_bytes=12"
post "/v1/$round/submissions" "{\"clientId\": \"$client\", \"submissionId\": \"one\"}"
post "/v1/$name:complete" "{\"clientId\": \"$client\", \"leaseId\": \"lease\", \"submissionId\": \"one\"}"
