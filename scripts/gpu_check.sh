#!/bin/bash
# What needs an NVIDIA GPU: tests of the CUDA kernels against the oracle of the CPU ones, sanitizers, speed.
#
#   scripts/gpu_check.sh --build                  here, needs nvcc and no GPU: programs into .gpu/
#   scripts/gpu_check.sh --part PART [--out DIR]  where the GPU is, with .gpu/ from a machine of the same processor
#   scripts/gpu_check.sh --merge DIR --name NAME  DIR/PART of all parts, into benchmarks/results/DATE-gpu-NAME
#
# Parts, each under a minute on an H200:
#   smoke     the machine, one test of each kind, a short benchmark
#   correct   every kernel over many shapes, types and routings, bit by bit
#   sanitize  compute-sanitizer's memcheck and racecheck on small shapes
#   speed     kernel times beside a copy of the same bytes; round trips between device and host
# DIR (default: .gpu/out/PART) gets logs/ of each step, measurements as .jsonl and PART.md with the table that is
# printed at the end. Exit code 0: every step passed.
set -uo pipefail
cd "$(dirname "$0")/.."

BIN=.gpu
TARGETS=(moe_kernels_test rounds_test adjoint_test signal_test kernels_benchmark signals_benchmark)
part="" out="" build=0 merge="" name=""
usage() { sed -n '2,17s/^# \{0,1\}//p' "$0"; }
while [[ $# -gt 0 ]]; do
  case "$1" in
    --build) build=1 ;;
    --part | --out | --merge | --name)
      [[ $# -gt 1 ]] || { echo "gpu_check: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    --help | -h) usage; exit 0 ;;
    *) echo "gpu_check: unknown argument $1 (--help lists them)" >&2; exit 2 ;;
  esac
  shift
done

if [[ $build == 1 ]]; then
  # One file each: the other machine need not have our libraries.
  bazel build --config=cuda --dynamic_mode=off "${TARGETS[@]/#//\/csrc/kernels/cuda:}" || exit 1
  mkdir -p "$BIN"
  for target in "${TARGETS[@]}"; do cp -f "bazel-bin/csrc/kernels/cuda/$target" "$BIN/"; done
  git describe --always --dirty >"$BIN/commit"
  exit 0
fi

if [[ -n $merge ]]; then
  [[ -n $name ]] || { echo "gpu_check: --merge needs --name, what the machine is called in results" >&2; exit 2; }
  exec python3 scripts/_gpu_results.py "$merge" --merge "$name"
fi

case "$part" in smoke | correct | sanitize | speed) ;; *)
  echo "gpu_check: --part must be smoke, correct, sanitize or speed, got '$part'" >&2; exit 2 ;;
esac
for target in "${TARGETS[@]}"; do
  [[ -x $BIN/$target ]] || { echo "gpu_check: $BIN/$target is missing: run scripts/gpu_check.sh --build first" >&2; exit 2; }
done
command -v nvidia-smi >/dev/null || { echo "gpu_check: no nvidia-smi: this machine has no NVIDIA driver" >&2; exit 2; }

out="${out:-$BIN/out/$part}"
mkdir -p "$out/logs"
measured="$out/kernels.jsonl" table="$out/$part.md" failed=0
rm -f "$measured" "$out/signals.jsonl"
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
commit=$(cat "$BIN/commit")
{
  echo "# gpu_check $part, $(date +%F), commit $commit"
  echo
  echo "$gpu"
  echo
  echo "| step | result | seconds |"
  echo "| --- | --- | ---: |"
} >"$table"

# step NAME COMMAND...: its output goes to a log, and so to the screen if it fails.
step() {
  local name="$1" begin=$SECONDS result=passed
  shift
  echo "== $name"
  if ! "$@" >"$out/logs/$name.log" 2>&1; then
    result=FAILED failed=1
    tail -40 "$out/logs/$name.log"
  fi
  local cases
  cases=$(sed -n 's/.*\[  PASSED  \] \([0-9]*\) tests\{0,1\}\..*/\1/p' "$out/logs/$name.log" | awk '{n += $1} END {if (n) print n}')
  echo "| $name | $result${cases:+, $cases cases} | $((SECONDS - begin)) |" >>"$table"
}

# In as many processes as there are shards: most of the time goes into the oracle, on the CPU.
sharded() {
  local program="$1" shards="$2" pids=() status=0
  shift 2
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout 500 "$BIN/$program" "$@" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return $status
}

benchmark() { timeout 400 "$BIN/kernels_benchmark" "$@" | tee -a "$measured"; return "${PIPESTATUS[0]}"; }

signals() { timeout 100 "$BIN/signals_benchmark" | tee "$out/signals.jsonl"; return "${PIPESTATUS[0]}"; }

case "$part" in
  smoke)
    step machine nvidia-smi
    step adjoint timeout 100 "$BIN/adjoint_test"
    step signals timeout 100 "$BIN/signal_test"
    step kernels timeout 100 "$BIN/moe_kernels_test" --gtest_filter='MoeKernelsTest.Typical*:MoeKernelsTest.*One*'
    step benchmark benchmark --graphs 4 ;;
  correct)
    step signals timeout 300 "$BIN/signal_test"
    step adjoint timeout 300 "$BIN/adjoint_test"
    step rounds sharded rounds_test 6
    step kernels sharded moe_kernels_test 8
    # Dispatch in several launches, which otherwise only long batches take.
    step rounds_unfused sharded rounds_test 6 --unfused
    step kernels_unfused sharded moe_kernels_test 8 --unfused ;;
  sanitize)
    small='MoeKernelsTest.OneTokenOneRank:MoeKernelsTest.EveryRouting:MoeKernelsTest.Quantised:Rounds.*Rank*'
    step memcheck timeout 250 compute-sanitizer --tool memcheck --error-exitcode 1 "$BIN/moe_kernels_test" --gtest_filter="$small"
    step memcheck_rounds timeout 100 compute-sanitizer --tool memcheck --error-exitcode 1 "$BIN/rounds_test" --gtest_filter="$small"
    step racecheck timeout 250 compute-sanitizer --tool racecheck --error-exitcode 1 "$BIN/moe_kernels_test" --gtest_filter="$small" ;;
  speed)
    step signals signals
    step decode_ep64_fp8 benchmark
    step decode_ep64_bf16 benchmark --fp8 0
    step decode_ep8_fp8 benchmark --ranks 8
    step prefill_ep8_fp8 benchmark --ranks 8 --tokens 4096 --graphs 12 ;;
esac

python3 scripts/_gpu_results.py "$out" >>"$table"
echo
cat "$table"
exit $failed
