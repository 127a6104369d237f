#!/usr/bin/env bash
# Checks this bundle on this machine, and measures it.
#
#   ./check.sh [--quick] [--out DIR] [--only PART[,PART]...] [--half cpu|gpu|both] [--within SECONDS]
#
# Parts: device contract faults differential bench peers serve sanitizer. Each has a half for the CPU, which runs
# anywhere, and one for the GPU. Where there is a GPU its half alone is run unless --half says otherwise; where there is
# none the CPU's is, and the GPU's is listed as not run. Every step has a log in DIR, numbers are in its JSON files, and a
# table of all steps comes last. DIR/check.json has all steps so far at any time. With --within no step goes on for longer
# than the seconds that are left of those, and what finds none is not run. Exit status 0: nothing failed; 1: something
# did, or was not done in its time; 2: wrong use.
#
# Needs nothing but the bundle. Uses, where they are: nvidia-smi, compute-sanitizer, and a Python with torch, CuPy or
# JAX ($PYTHON, else python3).
set -uo pipefail

parts=(device contract faults differential bench peers serve sanitizer) # in this order: what may take longest is last
home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$home/bin
quick=false
out=
only=()
halves= # empty: see above
within=

usage() {
  echo "usage: check.sh [--quick] [--out DIR] [--only PART[,PART]...] [--half cpu|gpu|both] [--within SECONDS]" >&2
  echo "parts: ${parts[*]}" >&2
  exit 2
}

add_only() { # PART[,PART]...
  local part list
  IFS=, read -r -a list <<<"$1"
  [[ ${#list[@]} -gt 0 ]] || usage
  for part in "${list[@]}"; do
    [[ " ${parts[*]} " == *" $part "* ]] || usage
    only+=("$part")
  done
}

while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=true ;;
    --out) [[ $# -ge 2 ]] || usage; out=$2; shift ;;
    --only) [[ $# -ge 2 ]] || usage; add_only "$2"; shift ;;
    --half) [[ ${2-} =~ ^(cpu|gpu|both)$ ]] || usage; halves=$2; shift ;;
    --within) [[ ${2-} =~ ^[1-9][0-9]{0,5}$ ]] || usage; within=$2; shift ;;
    *) usage ;;
  esac
  shift
done
[[ ${#only[@]} -gt 0 ]] || only=("${parts[@]}")
out=${out:-check-$(date -u +%Y%m%d-%H%M%S)}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
PATH=$PATH:/usr/local/cuda/bin # for compute-sanitizer, where nobody has put it there

# Steps and their results

rows=() # part|half|step|result|seconds|note
json_rows=
failed=0

json_text() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf '"%s"' "${text//[$'\n\t\r']/ }"
}

# Whole or not at all: whoever ends this in the middle has the steps until then.
write_json() {
  {
    printf '{"version": %s, "date": "%s", "quick": %s, "device": %s, "no_gpu": %s, "steps": [\n' \
      "$version_json" "$(date -u +%Y-%m-%d)" "$quick" "$device_json" "$no_gpu_json"
    printf '%s\n]}\n' "$json_rows"
  } >"$out/check.json.part"
  mv "$out/check.json.part" "$out/check.json"
}

add_row() { # part half step result seconds note
  rows+=("$1|$2|$3|$4|$5|$6")
  printf '%-13s %-4s %-30s %-8s %6s  %s\n' "$1" "$2" "$3" "$4" "$5" "$6"
  local seconds=$5
  [[ $seconds != - ]] || seconds=null
  json_rows+=${json_rows:+$',\n'}$(printf '{"part": "%s", "half": "%s", "step": %s, "result": "%s", "seconds": %s, "note": %s}' \
    "$1" "$2" "$(json_text "$3")" "$4" "$seconds" "$(json_text "$6")")
  write_json
}

wants() { [[ $halves == both || $halves == "$1" ]]; } # half

# step PART HALF NAME LIMIT_S COMMAND...: runs it with a log of its own.
step() {
  local part=$1 half=$2 name=$3 limit=$4
  shift 4
  wants "$half" || return 0
  if [[ -n $within && $((within - SECONDS)) -lt $limit ]]; then
    limit=$((within - SECONDS))
    if [[ $limit -lt 1 ]]; then
      skip "$part" "$half" "$name" "nothing is left of $within s"
      return
    fi
  fi
  local log=$out/$part-$half-${name//[^a-zA-Z0-9]/-}.log
  local begin=$EPOCHREALTIME status=0 result=ok note=
  timeout --kill-after=10 "$limit" "$@" </dev/null >"$log" 2>&1 || status=$?
  local end=$EPOCHREALTIME
  local milliseconds=$(((${end/[.,]/} - ${begin/[.,]/}) / 1000))
  if grep -q '^\[==========\] 0 tests' "$log"; then status="0, but no test was run"; fi
  # Of a server, whose clients are not told.
  if [[ $status == 0 ]] && grep -q gpu_fallback "$log"; then status="0, but the host did work of the device"; fi
  if [[ $status != 0 ]]; then
    failed=$((failed + 1))
    result=FAILED
    note="status $status"
    # 137: it did not end when it was asked to, or was killed by somebody else, for its memory perhaps.
    if [[ $status == 124 || ($status == 137 && $milliseconds -ge $((1000 * limit))) ]]; then
      result=TIMEOUT
      note="not done after $limit s"
    fi
    note+=", see ${log##*/}"
    tail -n 15 "$log" | sed 's/^/    /'
  else
    # What gtest says in its last lines.
    note=$(sed -n 's/^\[  PASSED  \] \([0-9]* tests\{0,1\}\)\.$/\1 passed/p' "$log")
    local skipped
    skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]* tests\{0,1\}\), listed below:$/\1 skipped/p' "$log")
    [[ -z $skipped ]] || note+=", $skipped"
  fi
  add_row "$part" "$half" "$name" "$result" "$((milliseconds / 1000)).$((milliseconds / 100 % 10))" "$note"
}

skip() { # part half step reason
  if wants "$2"; then add_row "$1" "$2" "$3" "not run" - "$4"; fi
}

# Chosen by --quick or not.
either() { if $quick; then echo "$1"; else echo "$2"; fi; }

gtest() { # filter: a command for step
  echo "$bin/sparseagg_engine_tests" "--gtest_filter=$1"
}

# Parts

# Whether there should be one, for all that the system says: nobody hid it, and this build has an engine for it.
is_listed() {
  [[ -n ${CUDA_VISIBLE_DEVICES-all} && ${CUDA_VISIBLE_DEVICES-} != -1 && $no_gpu != *"no CUDA engine"* ]] &&
    [[ $(timeout 60 nvidia-smi -L 2>/dev/null) == "GPU "* ]]
}

no_gpu= # why; empty: there is one
broken= # what is wrong with that
probe_status=0
probe=$(timeout --kill-after=10 120 "$bin/gpu_bench" --probe 2>&1) || probe_status=$?
if [[ $probe_status -ne 0 ]]; then
  no_gpu=${probe#gpu_bench: }
  if [[ $probe_status -ne 1 || $no_gpu != UNAVAILABLE* ]]; then
    broken="the probe ended with status $probe_status"
    no_gpu="$broken${no_gpu:+: $no_gpu}"
  elif is_listed; then
    broken="nvidia-smi lists a device, but: $no_gpu"
  elif [[ $halves == gpu ]]; then
    broken="--half gpu was asked for, but: $no_gpu"
  fi
fi
[[ -n $halves ]] || halves=$([[ -n $no_gpu ]] && echo both || echo gpu)
version_json=$(json_text "$("$bin/sparseagg-server" --version)")
device_json=$(json_text "$([[ -n $no_gpu ]] || echo "$probe")")
no_gpu_json=$(json_text "$no_gpu")

show_device() {
  echo "engine: ${no_gpu:-$probe}"
  echo "system: $(uname -sr), $(getconf GNU_LIBC_VERSION), $(nproc) processors, $(sed -n 's/^MemTotal: *//p' /proc/meminfo)"
  sed -n 's/^model name\t: /processor: /p' /proc/cpuinfo | head -1
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --format=csv,nounits --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,pcie.link.gen.current,pcie.link.width.current,ecc.mode.current,power.limit,temperature.gpu
    nvidia-smi topo -m
  else
    echo "nvidia-smi: absent"
  fi
  return 0
}

part_device() {
  show_device >"$out/device.txt" 2>&1
  sed 's/^/    /' "$out/device.txt"
  step device cpu "machine" 10 test -s "$out/device.txt"
  if [[ -n $broken ]]; then
    : # told already
  elif [[ -n $no_gpu ]]; then
    skip device gpu "probe" "$no_gpu"
  else
    step device gpu "probe" 60 "$bin/gpu_bench" --probe
  fi
}

part_contract() {
  # shellcheck disable=SC2046  # words on purpose
  SPARSEAGG_TEST_CASES=$(either 200 2500) step contract cpu "every engine and kernel" 300 \
    $(gtest '-*Differential*:*RealSize*:*Faults*:RealDevice*:*/cuda')
  if [[ -n $no_gpu ]]; then
    skip contract gpu "engine and device" "$no_gpu"
  else
    # shellcheck disable=SC2046
    step contract gpu "engine and device" 300 $(gtest '*/cuda:RealDevice.*')
  fi
}

# What memcheck or racecheck, with those options, finds in the tests of the device and of the engine.
sanitize() { # tool option...
  local tool=$1
  # 9: findings. A TIMEOUT has found nothing so far.
  local command=("$sanitizer" --tool "$tool" --error-exitcode 9 "${@:2}")
  # shellcheck disable=SC2046
  SPARSEAGG_TEST_CASES=$(either 3 10) step sanitizer gpu "$tool: device" "$(either 60 150)" \
    "${command[@]}" $(gtest 'RealDevice.Compiled*:Devices/*/cuda')
  # shellcheck disable=SC2046
  step sanitizer gpu "$tool: contract" "$(either 120 300)" \
    "${command[@]}" $(gtest "$(either 'Engines/Float*/cuda' 'Engines/*/cuda')")
}

part_sanitizer() {
  local tool
  sanitizer=$(command -v compute-sanitizer || true)
  if [[ -n $no_gpu || -z $sanitizer ]]; then
    for tool in memcheck racecheck; do
      skip sanitizer gpu "$tool" "${no_gpu:-compute-sanitizer is not on PATH}"
    done
    return
  fi
  sanitize memcheck
  # Races are looked for in the one kernel of ours that shares memory (cuda/kernels/grid.cuh): CUB's take most of the
  # time, and are not ours. A filter that matches no kernel would pass for a program without races.
  step sanitizer gpu "racecheck: its kernel" 60 grep -q RunBlocks "$bin/sparseagg_engine_tests"
  sanitize racecheck --kernel-name kns=RunBlocks
}

part_differential() {
  # shellcheck disable=SC2046
  SPARSEAGG_TEST_CASES=$(either 200 2500) step differential cpu "random cases, large shapes" 300 \
    $(gtest "$(either 'Differential*' '*Differential*')")
  # shellcheck disable=SC2046
  SPARSEAGG_TEST_TUPLES=$(either 200000 1000000) CUDA_VISIBLE_DEVICES='' step differential cpu \
    "real shapes, kernels on host" 300 $(gtest '*RealSize*')
  local tuples
  tuples=$(either 10000000 100000000)
  if [[ -n $no_gpu ]]; then
    skip differential gpu "real sizes, $tuples tuples" "$no_gpu"
  else
    # shellcheck disable=SC2046
    SPARSEAGG_TEST_TUPLES=$tuples step differential gpu "real sizes, $tuples tuples" 400 $(gtest '*RealSize*')
  fi
}

part_faults() {
  # shellcheck disable=SC2046
  step faults cpu "at every call, on the host" 300 $(gtest '*FaultsTest*')
  if [[ -n $no_gpu ]]; then
    skip faults gpu "at calls, and a full device" "$no_gpu"
  else
    # shellcheck disable=SC2046
    step faults gpu "at calls, and a full device" 120 $(gtest '*RealDeviceFaults*')
  fi
}

part_bench() {
  step bench cpu "engine, a few clients" 300 "$bin/merge_bench" --repetitions 3 --divide-clients "$(either 50 10)" \
    --out "$out/merge.json"
  step bench cpu "GPU benchmarks' program" 300 "$bin/gpu_bench" --device host --repetitions 1 --divide-clients 100
  if [[ -n $no_gpu ]]; then
    skip bench gpu "workloads A to G" "$no_gpu"
    return
  fi
  local path less=()
  if $quick; then less=(--divide-clients 4 --repetitions 5); fi
  step bench gpu "workloads A to G" "$(either 120 300)" "$bin/gpu_bench" --out "$out/gpu.json" \
    --variants "$(either plain plain,shuffled,skewed)" "${less[@]}"
  # What the planner chose between, where it might have chosen either.
  for path in tiles sort; do
    step bench gpu "A and B by $path" "$(either 30 60)" "$bin/gpu_bench" --out "$out/gpu-$path.json" --path "$path" \
      --workloads AB --variants plain "${less[@]}"
  done
}

part_peers() {
  local python=${PYTHON:-python3}
  if [[ -n $no_gpu ]]; then
    skip peers gpu "torch, CuPy, JAX" "$no_gpu"
  elif ! command -v "$python" >/dev/null; then
    skip peers gpu "torch, CuPy, JAX" "there is no $python"
  else
    step peers gpu "torch, CuPy, JAX" "$(either 90 150)" "$python" "$home/peers/gpu_peers.py" \
      --out "$out/gpu-peers.json" --divide-clients "$(either 4 1)"
  fi
}

# serve BACKEND: a server of the bundle's configuration on a free port, a load on it, and an orderly end.
serve() {
  local backend=$1 lines line server status=0
  exec {lines}< <(exec "$bin/sparseagg-server" --config "$home/sparseagg.toml" --grpc-address 127.0.0.1:0 \
    --backend "$backend")
  server=$!
  if ! read -r -t 60 line <&"$lines" || [[ $line != "listening grpc="* ]]; then
    kill "$server" 2>/dev/null
    return 1
  fi
  "$bin/sparseagg-loadgen" --target "${line#listening grpc=}" --repetitions 3 --divide-clients "$(either 20 1)" \
    --out "$out/serve-$backend.json" || status=$?
  kill -TERM "$server"
  wait "$server" || status=$?
  return "$status"
}

# Where there is no device a server that must have one does not start, and says why.
refuses_cuda() {
  local status=0
  timeout 60 "$bin/sparseagg-server" --grpc-address 127.0.0.1:0 --backend cuda || status=$?
  [[ $status -eq 1 ]]
}

part_serve() {
  export -f serve refuses_cuda either
  export bin home out quick
  if [[ ! -x $bin/sparseagg-loadgen ]]; then
    skip serve cpu "a load on the server" "this bundle has no sparseagg-loadgen"
  else
    step serve cpu "a load on the server" 200 bash -c 'serve cpu'
  fi
  if [[ -n $no_gpu ]]; then
    step serve cpu "no start without a device" 60 bash -c 'refuses_cuda'
    skip serve gpu "a load on the server" "$no_gpu"
  elif [[ ! -x $bin/sparseagg-loadgen ]]; then
    skip serve gpu "a load on the server" "this bundle has no sparseagg-loadgen"
  else
    step serve gpu "a load on the server" 200 bash -c 'serve cuda'
  fi
}

# The whole

write_json
# Whatever parts are asked for: a GPU that cannot be used must not pass for none.
if [[ -n $broken ]]; then
  failed=$((failed + 1))
  add_row device gpu "probe" FAILED 0.0 "$broken"
fi
for part in "${parts[@]}"; do
  if [[ " ${only[*]} " == *" $part "* ]]; then "part_$part"; fi
done

echo
printf '%-13s %-4s %-30s %-8s %8s  %s\n' part half step result seconds note
for row in "${rows[@]}"; do
  IFS='|' read -r part half name result seconds note <<<"$row"
  printf '%-13s %-4s %-30s %-8s %8s  %s\n' "$part" "$half" "$name" "$result" "$seconds" "$note"
done
not_run=$(printf '%s\n' "${rows[@]}" | grep -c '|not run|' || true)
echo
echo "$((${#rows[@]} - failed - not_run)) passed, $failed failed, $not_run not run, in $SECONDS s; logs and JSON in $out"
[[ -z $no_gpu ]] || echo "the GPU half was not run: $no_gpu"
[[ $failed -eq 0 ]]
