#!/usr/bin/env bash
# Checks this bundle on this machine, and measures it.
#
#   ./check.sh [--quick] [--out DIR] [--only PART[,PART]...] [--half cpu|gpu|both] [--within SECONDS]
#
# Parts, in the order in which they run: device contract sanitizer bench profile peers faults serve differential. What is
# quick and says most comes first, what is exhaustive last. No step takes more than 500 seconds. Each part has steps for
# the CPU, which run anywhere, and steps for the GPU. Without --half only the GPU's run where there is a GPU; where there
# is none the CPU's run and the GPU's are listed as not run. --within bounds the whole: a step ends after the seconds
# that are left, and is not started when none are.
#
# DIR gets check.txt (the table), check.json (the same, written anew after every step), the benchmarks' JSON, and more.tar
# with everything else, among it a log of every step: at most eight files. Exit status 0: nothing failed. 1: a step
# failed or took too long. 2: wrong use.
#
# Uses nvidia-smi, compute-sanitizer, ncu, and a Python with torch, CuPy or JAX ($PYTHON, else python3), where they are.
set -uo pipefail

parts=(device contract sanitizer bench profile peers faults serve differential) # the longest comes last
max_step_s=500
home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$home/bin
quick=false out=check-$(date -u +%Y%m%d-%H%M%S) only=${parts[*]} halves='' within=100000

usage() {
  echo "usage: check.sh [--quick] [--out DIR] [--only PART[,PART]...] [--half cpu|gpu|both] [--within SECONDS]" >&2
  echo "parts: ${parts[*]}" >&2
  exit 2
}

while [[ $# -gt 0 ]]; do
  case $1=${2-} in
    --quick=*) quick=true ;;
    --out=?*) out=$2; shift ;;
    --only=?*) only=${2//,/ }; shift ;;
    --half=cpu | --half=gpu | --half=both) halves=$2; shift ;;
    --within=[1-9]*) within=$2; shift ;;
    *) usage ;;
  esac
  shift
done
for part in $only; do
  [[ " ${parts[*]} " == *" $part "* ]] || usage
done
[[ $within =~ ^[0-9]+$ ]] || usage
mkdir -p "$out/more" || exit 2
out=$(cd "$out" && pwd)
more=$out/more
PATH=$PATH:/usr/local/cuda/bin # a usual place of compute-sanitizer
tests=$bin/sparseagg_engine_tests

# With --quick the first of two values, else the second.
either() { if $quick; then echo "$1"; else echo "$2"; fi; }

# Results

failed=0
json_steps=
printf '%-13s %-4s %-30s %-8s %8s  %s\n' part half step result seconds note | tee "$out/check.txt"

quoted() { printf '"%s"' "$(tr -d '\\\000-\037' <<<"${1//\"/\'}")"; }

add_row() { # part half step result seconds note
  printf '%-13s %-4s %-30s %-8s %8s  %s\n' "${@/#null/-}" | tee -a "$out/check.txt"
  json_steps+=${json_steps:+$',\n'}$(printf '{"part": "%s", "half": "%s", "step": %s, "result": "%s", "seconds": %s, "note": %s}' \
    "$1" "$2" "$(quoted "$3")" "$4" "$5" "$(quoted "$6")")
  printf '{"version": %s, "date": "%s", "quick": %s, "device": %s, "no_gpu": %s, "steps": [\n%s\n]}\n' \
    "$(quoted "$version")" "$(date -u +%Y-%m-%d)" "$quick" "$(quoted "$device")" "$(quoted "$no_gpu")" "$json_steps" \
    >"$out/check.json"
}

fail() { # part half step result seconds note
  failed=$((failed + 1))
  add_row "$@"
}

skip() { add_row "$1" "$2" "$3" 'not run' null "$4"; } # part half step reason

# Runs a command with a log of its own, if its half is wanted. $needs names a program that this machine may lack.
step() { # part half name limit_s command...
  local part=$1 half=$2 name=$3 limit=$4
  shift 4
  [[ $halves == both || $halves == "$half" ]] || return 0
  if [[ $half == gpu && -n $no_gpu ]]; then skip "$part" gpu "$name" "$no_gpu"; return; fi
  if [[ -n ${needs-} ]] && ! command -v "$needs" >/dev/null; then skip "$part" "$half" "$name" "there is no $needs"; return; fi
  local left=$((within - SECONDS)) log=$more/$part-$half-${name//[^a-zA-Z0-9]/-}.log
  if [[ $limit -gt $max_step_s ]]; then limit=$max_step_s; fi
  if [[ $left -lt 1 ]]; then skip "$part" "$half" "$name" "nothing is left of $within s"; return; fi
  if [[ $left -lt $limit ]]; then limit=$left; fi

  local begin=$SECONDS status=0
  timeout --kill-after=10 "$limit" "$@" </dev/null >"$log" 2>&1 || status=$?
  local seconds=$((SECONDS - begin)) note
  # The last lines of GoogleTest: how many tests passed and were skipped.
  note=$(sed -nE 's/^\[  (PASSED|SKIPPED)[ ]+\] ([0-9]+ tests?).*/\2 \L\1/p' "$log" | paste -sd,)
  if grep -q '^\[==========\] 0 tests' "$log"; then status='0, but no test was run'; fi
  # The server's log line for work that the device could not do; the server's clients do not see it.
  if grep -q gpu_fallback "$log"; then status="$status, and the host did work of the device"; fi
  if [[ $status == 0 ]]; then
    add_row "$part" "$half" "$name" ok "$seconds" "$note"
  elif [[ $status == 124 || $status == 137 && $seconds -ge $limit ]]; then
    fail "$part" "$half" "$name" TIMEOUT "$seconds" "not done after $limit s, see ${log##*/}"
  else
    tail -n 15 "$log" | sed 's/^/    /'
    fail "$part" "$half" "$name" FAILED "$seconds" "status $status, see ${log##*/}"
  fi
}

# The device

no_gpu='' broken=''
device=$(timeout --kill-after=10 120 "$bin/gpu_bench" --probe 2>&1)
status=$?
if [[ $status -ne 0 ]]; then
  no_gpu=${device#gpu_bench: } device=
  no_gpu=${no_gpu:-the probe ended with status $status}
  # A GPU that cannot be used must not pass for a machine without a GPU.
  if [[ $status -ne 1 || $no_gpu != *UNAVAILABLE* ]]; then
    broken="the probe ended with status $status: $no_gpu"
  elif [[ $halves == gpu ]]; then
    broken="--half gpu was asked for, but: $no_gpu"
  elif [[ $halves != cpu && $no_gpu != *'no CUDA engine'* && $(nvidia-smi -L 2>/dev/null) == 'GPU '* ]]; then
    broken="nvidia-smi lists a device, but: $no_gpu"
  fi
fi
if [[ -z $halves ]]; then halves=$([[ -n $no_gpu ]] && echo both || echo gpu); fi
version=$("$bin/sparseagg-server" --version)

# Parts

show_machine() {
  echo "engine: ${device:-$no_gpu}"
  echo "system: $(uname -sr), $(getconf GNU_LIBC_VERSION), $(nproc) processors, $(sed -n 's/^MemTotal: *//p' /proc/meminfo)"
  sed -n 's/^model name\t: /processor: /p' /proc/cpuinfo | head -1
  nvidia-smi --format=csv,nounits --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,pcie.link.gen.current,pcie.link.width.current,ecc.mode.current,power.limit,temperature.gpu
  nvidia-smi topo -m
}

part_device() {
  show_machine 2>&1 | tee "$more/device.txt" | sed 's/^/    /'
  step device cpu 'machine' 10 test -s "$more/device.txt"
  step device gpu 'probe' 60 "$bin/gpu_bench" --probe
}

part_contract() {
  step contract cpu 'every engine and kernel' 300 env SPARSEAGG_TEST_CASES="$(either 200 2500)" \
    "$tests" --gtest_filter='-*Differential*:*RealSize*:*Faults*:RealDevice*:*/cuda:*/cudatiny*'
  step contract gpu 'engine and device' 300 "$tests" --gtest_filter='*/cuda:RealDevice.*'
  step contract gpu 'engine with tiny sizes' 300 "$tests" --gtest_filter='*/cudatiny*'
}

part_faults() {
  step faults cpu 'at every call, on the host' 300 "$tests" --gtest_filter='*FaultsTest*'
  step faults gpu 'at calls, and a full device' 120 "$tests" --gtest_filter='*RealDeviceFaults*'
}

part_differential() {
  step differential cpu 'random cases, large shapes' 300 env SPARSEAGG_TEST_CASES="$(either 200 2500)" \
    "$tests" --gtest_filter="$(either 'Differential*' '*Differential*')"
  step differential cpu 'real shapes, kernels on host' 300 env SPARSEAGG_TEST_TUPLES="$(either 200000 1000000)" \
    CUDA_VISIBLE_DEVICES='' "$tests" --gtest_filter='*RealSize*'
  step differential gpu 'real sizes' 400 env SPARSEAGG_TEST_TUPLES="$(either 10000000 100000000)" \
    "$tests" --gtest_filter='*RealSize*'
}

part_bench() {
  step bench cpu 'gpu_bench on the host' 300 "$bin/gpu_bench" --device host --repetitions 1 --divide-clients 100
  local less=() path
  if $quick; then less=(--divide-clients 4 --repetitions 5); fi
  step bench gpu 'workloads A to G' "$(either 120 300)" "$bin/gpu_bench" --out "$out/gpu.json" \
    --variants "$(either plain plain,shuffled,skewed)" "${less[@]}"
  for path in tiles sort; do # both paths where the planner has a choice
    step bench gpu "A, B and C by $path" "$(either 30 60)" "$bin/gpu_bench" --out "$more/gpu-$path.json" --path "$path" \
      --workloads ABC --variants plain "${less[@]}"
  done
}

part_peers() {
  local python=${PYTHON:-python3}
  needs=$python step peers cpu 'the script, no device' 60 env CUDA_VISIBLE_DEVICES='' \
    "$python" "$home/peers/gpu_peers.py" --out "$more/no-peers.json" --divide-clients 400
  needs=$python step peers gpu 'torch, CuPy, JAX' "$(either 90 150)" "$python" "$home/peers/gpu_peers.py" \
    --out "$out/gpu-peers.json" --divide-clients "$(either 4 1)"
}

# A server on a free port, load on it, and its orderly end.
serve() { # backend
  local address status=0 lines=$more/serve-$1.lines
  mkfifo "$lines"
  "$bin/sparseagg-server" --config "$home/sparseagg.toml" --grpc-address 127.0.0.1:0 \
    --http-address none --metrics-address none --backend "$1" >"$lines" &
  exec 3<"$lines"
  rm "$lines"
  read -r -t 60 -u 3 address
  address=${address#listening grpc=}
  "$bin/sparseagg-loadgen" --target "${address%% *}" --repetitions 3 --divide-clients "$(either 20 1)" \
    --out "$more/serve-$1.json" || status=$?
  kill -TERM %1 # by its job, since the id of a server that has ended may be another process's
  wait %1 && return "$status"
}

part_serve() {
  export -f serve either
  export bin home more quick
  step serve cpu 'load on the server' 200 bash -c 'serve cpu'
  step serve gpu 'load on the server' 200 bash -c 'serve cuda'
}

# What Nsight Compute says of each kernel, for one run of A by either path.
part_profile() {
  local needs=ncu path
  for path in tiles sort; do
    step profile gpu "ncu: A by $path" "$(either 120 300)" ncu --print-summary per-kernel --section SpeedOfLight \
      --section MemoryWorkloadAnalysis --section Occupancy --section LaunchStats --csv --log-file "$more/ncu-$path.csv" \
      "$bin/gpu_bench" --path "$path" --workloads A --variants plain --repetitions 1 --divide-clients "$(either 10 1)"
  done
}

part_sanitizer() {
  local needs=compute-sanitizer tool sanitizer cases filter
  cases=$(either 3 10) filter=$(either 'Engines/Float*/cuda' 'Engines/*/cuda')
  # Races are looked for in the one kernel of ours that shares memory (cuda/kernels/grid.cuh). compute-sanitizer says
  # nothing when its filter matches no kernel, so the kernel's name is looked up first.
  step sanitizer gpu 'racecheck: its kernel' 60 grep -q RunBlocks "$tests"
  for tool in memcheck 'racecheck --kernel-name kns=RunBlocks' 'synccheck --kernel-name kns=RunBlocks' initcheck; do
    sanitizer="$needs --error-exitcode 9 --tool $tool"
    # shellcheck disable=SC2086  # words on purpose
    step sanitizer gpu "${tool%% *}: device" "$(either 60 150)" env SPARSEAGG_TEST_CASES="$cases" \
      $sanitizer "$tests" --gtest_filter='RealDevice.Compiled*:Devices/*/cuda'
    # shellcheck disable=SC2086
    step sanitizer gpu "${tool%% *}: contract" "$(either 120 300)" $sanitizer "$tests" --gtest_filter="$filter"
  done
}

if [[ -n $broken ]]; then fail device gpu 'probe' FAILED 0 "$broken"; fi
for part in "${parts[@]}"; do
  if [[ " $only " == *" $part "* ]]; then "part_$part"; fi
done

# One file of all logs.
if tar -C "$out" -cf "$out/more.tar" more; then rm -r "$more"; fi

echo
cat "$out/check.txt"
echo
echo "$failed failed, in $SECONDS s; the JSON is in $out, logs are in more.tar there"
if [[ -n $no_gpu ]]; then echo "the GPU's steps were not run: $no_gpu"; fi
[[ $failed -eq 0 ]]
