#!/usr/bin/env bash
# Checks this bundle on this machine, and measures it.
#
#   ./check.sh [--quick|--trial] [--out DIR] [--only PART[,PART]...] [--half cpu|gpu|both] [--within SECONDS]
#
# Parts run in the order of --only, or what is quick and says most first, what is exhaustive last: device contract
# sanitizer bench tuning arrays profile peers faults serve differential. No step takes more than 500 seconds. Each part
# has steps for the CPU, which run anywhere, and steps for the GPU. Without --half only the GPU's run where there is a GPU;
# where there is none the CPU's run and the GPU's are listed as not run. --within bounds the whole: a step ends after the
# seconds that are left, and is not started when none are.
#
# --trial is for a GPU that is there for twelve minutes: benchmarks of full size with few repetitions, the rest as with
# --quick, in the order of worth, and limits so short that a step that hangs leaves time for the others.
#
# DIR gets check.txt (the table), check.json (the same, written anew after every step), the benchmarks' JSON, gpu.md (their
# table, as in docs/gpu.md), gpu-tuning.txt (rates by each path and with each size), and more.tar with everything else,
# among it a log of every step: at most eight files. Exit status 0: nothing failed. 1: a step failed or took too long.
# 2: wrong use.
#
# Uses nvidia-smi, compute-sanitizer, ncu, and a Python with torch, CuPy or JAX ($PYTHON, else python3), where they are.
set -uo pipefail

parts=(device contract sanitizer bench tuning arrays profile peers faults serve differential) # the longest comes last
trial_parts='device contract differential bench tuning sanitizer peers arrays profile'
max_step_s=500
home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$home/bin
size=full out=check-$(date -u +%Y%m%d-%H%M%S) only=${parts[*]} halves='' within=100000

usage() {
  echo "usage: check.sh [--quick|--trial] [--out DIR] [--only PART[,PART]...] [--half cpu|gpu|both] [--within SECONDS]" >&2
  echo "parts: ${parts[*]}" >&2
  exit 2
}

while [[ $# -gt 0 ]]; do
  case $1=${2-} in
    --quick=*) size=quick ;;
    --trial=*) size=trial only=$trial_parts within=720 ;;
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

# With --quick the first of the values, without the second, with --trial the third or the first.
either() { case $size in quick) echo "$1" ;; full) echo "$2" ;; *) echo "${3-$1}" ;; esac }

# Results

failed=0
json_steps=
printf '%-13s %-4s %-30s %-8s %8s  %s\n' part half step result seconds note | tee "$out/check.txt"

quoted() { printf '"%s"' "$(tr -d '\\\000-\037' <<<"${1//\"/\'}")"; }

add_row() { # part half step result seconds note
  printf '%-13s %-4s %-30s %-8s %8s  %s\n' "${@/#null/-}" | tee -a "$out/check.txt"
  json_steps+=${json_steps:+$',\n'}$(printf '{"part": "%s", "half": "%s", "step": %s, "result": "%s", "seconds": %s, "note": %s}' \
    "$1" "$2" "$(quoted "$3")" "$4" "$5" "$(quoted "$6")")
  printf '{"version": %s, "date": "%s", "size": "%s", "device": %s, "no_gpu": %s, "steps": [\n%s\n]}\n' \
    "$(quoted "$version")" "$(date -u +%Y-%m-%d)" "$size" "$(quoted "$device")" "$(quoted "$no_gpu")" "$json_steps" \
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

  echo "    $SECONDS s: $part, $name, at most $limit s"
  local begin=$SECONDS status=0
  timeout --kill-after=10 "$limit" "$@" </dev/null >"$log" 2>&1 || status=$?
  local seconds=$((SECONDS - begin)) note
  # The last lines of GoogleTest: how many tests passed and were skipped; and what check_gpu.py skips.
  note=$(sed -nE 's/^\[  (PASSED|SKIPPED)[ ]+\] ([0-9]+ tests?).*/\2 \L\1/p; /^skipped /p' "$log" | paste -sd,)
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
  step device gpu 'probe' "$(either 60 60 20)" "$bin/gpu_bench" --probe
}

part_contract() {
  step contract cpu 'every engine and kernel' 300 env SPARSEAGG_TEST_CASES="$(either 200 2500)" \
    "$tests" --gtest_filter='-*Differential*:*RealSize*:*Faults*:RealDevice*:*/cuda:*/cudatiny*'
  step contract gpu 'engine and device' "$(either 300 300 50)" "$tests" --gtest_filter='*/cuda:RealDevice.*'
  step contract gpu 'engine with tiny sizes' "$(either 300 300 30)" "$tests" --gtest_filter='*/cudatiny*'
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
  step differential gpu 'real sizes' "$(either 400 400 60)" env SPARSEAGG_TEST_TUPLES="$(either 10000000 100000000)" \
    "$tests" --gtest_filter='*RealSize*'
}

bench_gpu() { # name limit_s options...
  local options=(--variants plain)
  case $size in
    quick) options+=(--divide-clients 4 --repetitions 5) ;;
    trial) options+=(--repetitions 5) ;;
  esac
  step "$part" gpu "$1" "$2" "$bin/gpu_bench" "${options[@]}" "${@:3}"
}

part_bench() {
  step bench cpu 'gpu_bench on the host' 300 "$bin/gpu_bench" --device host --repetitions 1 --divide-clients 100
  local path
  bench_gpu 'workloads A to G' "$(either 120 300 120)" --out "$out/gpu.json" --variants "$(either plain plain,shuffled,skewed)"
  for path in tiles sort; do # both paths where the planner has a choice
    bench_gpu "A, B and C by $path" "$(either 30 60)" --out "$more/gpu-$path.json" --path "$path" --workloads ABC
  done
}

# Other sizes than those of cuda/tuning.h, where they may matter.
part_tuning() {
  local workloads settings
  while read -r workloads settings; do
    # shellcheck disable=SC2086  # words on purpose
    bench_gpu "$workloads $settings" "$(either 25 40 25)" --out "$more/gpu-$workloads${settings//[^a-z0-9.]/-}.json" \
      --workloads "$workloads" $settings
  done <<'END'
ABC --slab-bytes 0
ABC --min-matrix-tuples 4294967295
ABC --min-matrix-tuples 128
ABG --max-tile-tuples 768
ABG --max-tile-tuples 1024
E --min-resident-bytes 1024
END
}

# Arrays that libraries have on the device, in Python, by the package and the engine beside it, unpacked.
arrays() {
  local site
  site=$(mktemp -d) || return
  "$python" -m zipfile -e "$home"/python/sparseagg-*.whl "$site" && rm -f "$site/sparseagg/_no_engine.txt" &&
    cp "$home"/python/_engine.* "$site/sparseagg/" &&
    PYTHONPATH=$site SPARSEAGG_CUDA_PLUGIN=$home/python/libsparseagg_cuda.so \
      "$python" "$home/tests/integrations/device/check_gpu.py" --only "$1" --json "$out/arrays.json"
  local status=$?
  rm -r "$site"
  return $status
}

part_arrays() {
  export -f arrays
  export home out
  export python=${PYTHON:-python3}
  needs=$python step arrays gpu 'times beside torch' "$(either 60 60 30)" bash -c 'arrays times'
  if [[ $size == full ]]; then
    needs=$python step arrays gpu 'torch, CuPy, JAX, Numba' 250 bash -c 'arrays torch,cupy,jax,numba'
  fi
}

part_peers() {
  local python=${PYTHON:-python3}
  needs=$python step peers cpu 'the script, no device' 60 env CUDA_VISIBLE_DEVICES='' \
    "$python" "$home/peers/gpu_peers.py" --out "$more/no-peers.json" --divide-clients 400
  needs=$python step peers gpu 'torch, CuPy, JAX' "$(either 90 150 70)" "$python" "$home/peers/gpu_peers.py" \
    --out "$out/gpu-peers.json" --divide-clients "$(either 4 1 1)" --repetitions "$(either 5 5 3)"
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
  export bin home more size
  step serve cpu 'load on the server' 200 bash -c 'serve cpu'
  step serve gpu 'load on the server' 200 bash -c 'serve cuda'
}

# What Nsight Compute says of each kernel, for one run of dense tiles, of sparse ones, and of the sort; in a trial, of the
# first kernels of blocks alone, where tiles fold.
part_profile() {
  local needs=ncu workload path few=()
  if [[ $size == trial ]]; then few=(--kernel-name regex:RunBlocks --launch-count 12); fi
  while read -r workload path; do
    if [[ $size == trial && $path == sort ]]; then continue; fi
    step profile gpu "ncu: $workload by $path" "$(either 120 300 30)" ncu "${few[@]}" --clock-control none \
      --print-summary per-kernel --section SpeedOfLight --section MemoryWorkloadAnalysis --section WarpStateStats \
      --section Occupancy --section LaunchStats --csv --log-file "$more/ncu-$workload-$path.csv" "$bin/gpu_bench" \
      --path "$path" --workloads "$workload" --variants plain --repetitions 1 --divide-clients "$(either 10 1 1)"
  done <<<$'C tiles\nA tiles\nA sort'
}

part_sanitizer() {
  local needs=compute-sanitizer tool sanitizer cases filter
  local tools=(memcheck 'racecheck --kernel-name kns=RunBlocks')
  if [[ $size != trial ]]; then tools+=('synccheck --kernel-name kns=RunBlocks' initcheck); fi
  cases=$(either 3 10) filter=$(either 'Engines/Float*/cuda' 'Engines/*/cuda')
  # Races are looked for in the one kernel of ours that shares memory (cuda/kernels/grid.cuh). compute-sanitizer says
  # nothing when its filter matches no kernel, so the kernel's name is looked up first.
  step sanitizer gpu 'racecheck: its kernel' "$(either 60 60 5)" grep -q RunBlocks "$tests"
  for tool in "${tools[@]}"; do
    sanitizer="$needs --error-exitcode 9 --tool $tool"
    # shellcheck disable=SC2086  # words on purpose
    step sanitizer gpu "${tool%% *}: device" "$(either 60 150 25)" env SPARSEAGG_TEST_CASES="$cases" \
      $sanitizer "$tests" --gtest_filter='RealDevice.Compiled*:Devices/*/cuda'
    # shellcheck disable=SC2086
    step sanitizer gpu "${tool%% *}: contract" "$(either 120 300 40)" $sanitizer "$tests" --gtest_filter="$filter"
  done
}

if [[ -n $broken ]]; then fail device gpu 'probe' FAILED 0 "$broken"; fi
for part in $only; do "part_$part"; done

if [[ -s $out/gpu.json ]]; then
  files=("$out/gpu.json")
  if [[ -s $out/gpu-peers.json ]]; then files+=("$out/gpu-peers.json"); fi
  "${PYTHON:-python3}" "$home/peers/show.py" "${files[@]}" | tee "$out/gpu.md"
fi

# What the benchmark said by each path and with each size, side by side.
(cd "$more" && grep -E '^[A-G] .* (resident|finish) ' {bench,tuning}-gpu-*.log >"$out/gpu-tuning.txt" 2>/dev/null) ||
  rm "$out/gpu-tuning.txt"

# One file of all logs.
if tar -C "$out" -cf "$out/more.tar" more; then rm -r "$more"; fi

echo
cat "$out/check.txt"
echo
echo "$failed failed, in $SECONDS s; the JSON is in $out, logs are in more.tar there"
if [[ -n $no_gpu ]]; then echo "the GPU's steps were not run: $no_gpu"; fi
[[ $failed -eq 0 ]]
