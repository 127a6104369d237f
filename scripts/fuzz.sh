#!/usr/bin/env bash
# Runs fuzz targets under the sanitizers, two at a time, and prints what each has done:
#
#   scripts/fuzz.sh BUILD SECONDS [TARGET…]
#
# Inputs that reach new code are kept in out/fuzz/TARGET, where the next run begins; an input that ends a target is
# written to out/fuzz/crashes. Exits with an error if there is one. Edges are the branches that the inputs have reached.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 seconds=$2
shift 2
out=$PWD/out/fuzz
targets=("$@")
((${#targets[@]})) || targets=(batch chunk config credentials frames http keys round spec store)

run() { # BUILD OUT SECONDS SEED TARGET
  local build=$1 out=$2 seconds=$3 seed=$4 target=$5 status=0
  mkdir -p "$out/$target" "$out/seeds/$target"
  # Inputs of more than the 16 KiB from which the server takes messages apart, and few enough bytes to stay quick.
  "$build/tests/fuzz/sparseagg_${target}_fuzz" -max_total_time="$seconds" -seed="$seed" -max_len=40000 -timeout=20 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$out/crashes/$target-" \
    "$out/$target" "$out/seeds/$target" >"$out/$target.log" 2>&1 || status=$?
  printf '%-12s %11s executions %7s edges  exit %s\n' "$target" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$target.log")" \
    "$(grep -o 'cov: [0-9]*' "$out/$target.log" | tail -1 | tr -dc 0-9)" "$status"
  ((status == 0)) || { tail -40 "$out/$target.log" >&2 && return 1; }
}
export -f run

mkdir -p "$out/crashes"
[[ ! -d /dev/shm ]] || export TMPDIR=/dev/shm # temporary folders of the targets
"$build/tests/fuzz/sparseagg_fuzz_seeds" "$out/seeds"
seed=${SEED:-$RANDOM}
echo "seed $seed, $seconds s each"
printf '%s\n' "${targets[@]}" | xargs -P 2 -I '{}' bash -c 'run "$@"' _ "$build" "$out" "$seconds" "$seed" '{}'
