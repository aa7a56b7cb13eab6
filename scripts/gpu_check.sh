#!/bin/bash
# What needs an NVIDIA GPU: the CUDA kernels against the oracle of the CPU ones, JAX programs, sanitizers, speed.
#
#   scripts/gpu_check.sh --build [--python 3.12]  here, needs nvcc and no GPU: programs into .gpu/, and the Python
#                                                 extension with what it needs, for that Python
#   scripts/gpu_check.sh --part PART [--out DIR] [--gpus N]
#                                                 where the GPU is, with .gpu/ from a machine of the same processor;
#                                                 --gpus: how many ranks share out, in programs, processes, failures
#   scripts/gpu_check.sh --merge DIR --name NAME  DIR/PART of all parts, into benchmarks/results/DATE-gpu-NAME
#
# Parts, each under four minutes on an H200:
#   smoke     the machine, one test of each kind, a short benchmark
#   correct   every kernel over many shapes, types and routings, bit by bit
#   programs  JAX programs of two processes with every way of XLA to run them: in halves, under vmap, scan and grad,
#             donated, profiled, and how often each call ran
#   processes JAX programs of 1 to 8 processes, which share the GPUs by MPS
#   failures  processes that are silent, killed, misused or closed, and the others, which go on until they are back
#   nic       memory of GPUs as NICs are given it; JAX programs of ranks on GPUs over libfabric's TCP, and from memory
#             of GPUs to memory of GPUs over a double of libibverbs; the host's words in GPU memory, over one of GDRCopy
#   hybrid    the same double among ranks of two nodes: those of one node store into each other's memory
#   sanitize  compute-sanitizer's memcheck and racecheck on small shapes
#   speed     kernel times beside a copy of the same bytes; round trips between device and host
# DIR (default: .gpu/out/PART) gets logs/ of each step, measurements as .jsonl and PART.md with the table that is
# printed at the end. Exit code 0: every step passed.
set -uo pipefail
cd "$(dirname "$0")/.."

BIN=.gpu
TARGETS=(csrc/kernels/cuda/{moe_kernels_test,rounds_test,adjoint_test,exchange_test,kernels_benchmark}
         csrc/moe/cuda/{proxy_benchmark,signals_benchmark} csrc/engine/domains/nic/cuda_memory_test
         csrc/engine/domains/connectx/double/libverbs_double.so
         csrc/moe/cuda/gdrcopy/double/libgdrapi_double.so)
part="" out="" build=0 merge="" name="" python="" gpus=1
usage() { sed -n '2,28s/^# \{0,1\}//p' "$0"; }
while [[ $# -gt 0 ]]; do
  case "$1" in
    --build) build=1 ;;
    --part | --out | --merge | --name | --python | --gpus)
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
  labels=() && for target in "${TARGETS[@]}"; do labels+=("//${target%/*}:${target##*/}"); done
  bazel build --config=ci --//:unity --config=cuda --dynamic_mode=off "${labels[@]}" || exit 1
  mkdir -p "$BIN"
  for target in "${TARGETS[@]}"; do cp -f "bazel-bin/$target" "$BIN/"; done
  bazel build --config=ci --//:unity --config=cuda //jax_fabric:_core.abi3.so || exit 1
  mkdir -p "$BIN/site" "$BIN/lib"
  # libfabric and what it needs, but for what every machine has.
  libfabric=$(ldconfig -p | sed -n 's/.*libfabric\.so\.1 .*=> //p' | head -1)
  if [[ -n $libfabric ]]; then
    ldd "$libfabric" | awk -v it="$libfabric" '/=> \// {print $3} END {print it}' |
      grep -vE '/(libc|libm|libdl|libpthread|librt)\.so' | xargs cp -fL -t "$BIN/lib"
  fi
  cp -f bazel-bin/jax_fabric/_core.abi3.so "$BIN/"
  if [[ -n $python ]]; then
    python3 -m pip install --quiet --no-deps --only-binary=:all: --python-version "$python" --upgrade \
      --target "$BIN/site" nanobind-backend || exit 1
  fi
  git describe --always --dirty >"$BIN/commit"
  exit 0
fi

if [[ -n $merge ]]; then
  [[ -n $name ]] || { echo "gpu_check: --merge needs --name, what the machine is called in results" >&2; exit 2; }
  exec python3 scripts/_gpu_results.py "$merge" --merge "$name"
fi

case "$part" in smoke | correct | programs | processes | failures | nic | hybrid | sanitize | speed) ;; *)
  echo "gpu_check: --part must be smoke, correct, programs, processes, failures, nic, hybrid, sanitize or speed, got '$part'" >&2; exit 2 ;;
esac
for target in "${TARGETS[@]##*/}"; do
  [[ -x $BIN/$target ]] || { echo "gpu_check: $BIN/$target is missing: run scripts/gpu_check.sh --build first" >&2; exit 2; }
done
command -v nvidia-smi >/dev/null || { echo "gpu_check: no nvidia-smi: this machine has no NVIDIA driver" >&2; exit 2; }

out="${out:-$BIN/out/$part}"
mkdir -p "$out/logs"
measured="$out/kernels.jsonl" table="$out/$part.md" failed=0
rm -f "$measured" "$out/signals.jsonl" "$out/layers.jsonl"
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

# PROGRAM: how long device and host take to tell each other something.
signals() { timeout 100 "$BIN/$1" | tee -a "$out/signals.jsonl"; return "${PIPESTATUS[0]}"; }

# JAX programs; the extension takes the place that it has in a source tree.
exchanges() {
  cp -f "$BIN/_core.abi3.so" jax_fabric/_core.abi3.so
  PYTHONPATH="$PWD:$PWD/$BIN/site" TF_CPP_MIN_LOG_LEVEL=2 timeout 300 \
    python3 tests/gpu/exchange_program.py --gpus "$gpus" "$@"
}

# The same over NICs, as libfabric's TCP plays them, which does not reach memory of GPUs.
tcp() { LD_LIBRARY_PATH="$PWD/$BIN/lib" JAX_FABRIC_DOMAIN=efa JAX_FABRIC_EFA_PROVIDER=tcp "$@"; }
tcp_exchanges() { tcp exchanges --force-staged "$@"; }
refuses_gpu_memory() {
  local said
  said=$(exchanges --steps 1 --cases forward 2>&1) && return 1
  echo "$said"
  [[ $said == *"force_staged=True goes through host memory instead"* ]]
}

# From the memory of GPUs into that of others, by the double of libibverbs, whose devices copy it. A NIC needs none of
# the GPU's queues; the double's copies must not come behind kernels that wait for them.
direct_exchanges() {
  CUDA_DEVICE_MAX_CONNECTIONS=32 JAX_FABRIC_DOMAIN=connectx JAX_FABRIC_CONNECTX_LIBRARY="$PWD/$BIN/libverbs_double.so" exchanges "$@"
}

# Through host memory, but for what the host tells kernels: that a double of GDRCopy copies into the GPU's.
gdrcopy_exchanges() {
  local said
  said=$(CUDA_DEVICE_MAX_CONNECTIONS=32 JAX_FABRIC_LOG=info \
    JAX_FABRIC_GDRCOPY_LIBRARY="$PWD/$BIN/libgdrapi_double.so" exchanges --force-staged "$@" 2>&1)
  local status=$?
  echo "$said"
  [[ $said != *"words in its own memory"* ]] && return $status
}

# Processes that share a GPU run at the same time only by MPS.
start_mps() {
  mps=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY="$mps" CUDA_MPS_LOG_DIRECTORY="$mps"
  nvidia-cuda-mps-control -d && trap 'echo quit | nvidia-cuda-mps-control; rm -rf "$mps"' EXIT
}

case "$part" in
  smoke)
    step machine nvidia-smi
    step adjoint timeout 100 "$BIN/adjoint_test"
    step exchange timeout 100 "$BIN/exchange_test"
    step jax exchanges
    step kernels timeout 100 "$BIN/moe_kernels_test" --gtest_filter='MoeKernelsTest.Typical*:MoeKernelsTest.*One*'
    step benchmark benchmark --graphs 4 ;;
  correct)
    step exchange timeout 300 "$BIN/exchange_test"
    step adjoint timeout 300 "$BIN/adjoint_test"
    step rounds sharded rounds_test 6
    step kernels sharded moe_kernels_test 8
    # Dispatch in several launches, which otherwise only long batches take.
    step rounds_unfused sharded rounds_test 6 --unfused
    step kernels_unfused sharded moe_kernels_test 8 --unfused ;;
  programs)
    step mps start_mps
    for flags in default no_graphs all_graphs; do
      for how in "" --force-staged; do
        step "two${how/--force-staged/_staged}_$flags" exchanges --processes 2 --flags "$flags" $how --steps 20 \
          --cases forward,gradients,scan,split,two_batches,quantised,vmap,donated,profiled,counted,watched,compiling
      done
    done ;;
  processes)
    step one_process exchanges --cases forward,gradients,scan,split,memory
    step mps start_mps
    step four_in_rounds exchanges --processes 4 --private-tokens 5 \
      --cases forward,gradients,scan,split,quantised,vmap,counted
    step four_in_rounds_staged exchanges --processes 4 --private-tokens 5 --force-staged
    step eight exchanges --processes 8
    step eight_staged exchanges --processes 8 --force-staged
    step eight_10000_steps exchanges --processes 8 --cases forward --steps 10000 --limit-s 200
    for how in "" --force-staged; do
      step "eight_layer${how/--force-staged/_staged}" exchanges --processes 8 --cases timed --tokens 128 --hidden 7168 \
        --top-k 8 --experts 256 --measured "$out/layers.jsonl" $how
    done
    # The same bytes without other processes: what plain JAX is compared with on equal terms.
    for tokens in 128 1024; do
      step "one_layer_$tokens" exchanges --cases timed --tokens "$tokens" --hidden 7168 --top-k 8 --experts 256 \
        --measured "$out/layers.jsonl"
    done ;;
  failures)
    step mps start_mps
    for how in "" --force-staged; do
      suffix=${how/--force-staged/_staged}
      step "eight_silent$suffix" exchanges --processes 8 --cases silent --timeout-s 3 $how
      step "three_killed$suffix" exchanges --processes 3 --cases killed --timeout-s 5 $how
      step "three_recovered$suffix" exchanges --processes 3 --cases recovered --timeout-s 20 $how --steps 8
      step "two_misused$suffix" exchanges --processes 2 --cases misused --timeout-s 5 $how
    done
    step two_misused_in_rounds exchanges --processes 2 --cases misused --timeout-s 5 --private-tokens 5 --flags all_graphs
    step two_recovered_all_graphs exchanges --processes 2 --cases recovered --timeout-s 20 --steps 8 --flags all_graphs
    step two_closed exchanges --processes 2 --cases closed
    step two_closed_no_graphs exchanges --processes 2 --cases closed --flags no_graphs ;;
  nic)
    step memory timeout 100 "$BIN/cuda_memory_test"
    step mps start_mps
    for flags in default no_graphs all_graphs; do
      step "two_tcp_$flags" tcp_exchanges --processes 2 --flags "$flags" --steps 20 \
        --cases forward,gradients,scan,split,quantised,vmap
    done
    step tcp_refused tcp refuses_gpu_memory
    # Not with everything in graphs: making one keeps the driver's lock, for which the double's copies would wait.
    for flags in default no_graphs; do
      step "two_direct_$flags" direct_exchanges --node-processes 1 --processes 2 --flags "$flags" --steps 20 \
        --cases forward,gradients,scan,split,quantised,vmap
    done
    step two_gdrcopy gdrcopy_exchanges --processes 2 --steps 20 --cases forward,gradients,scan,split
    step two_gdrcopy_recovered gdrcopy_exchanges --processes 2 --cases recovered --timeout-s 20 --steps 8
    step three_direct_in_rounds direct_exchanges --node-processes 1 --processes 3 --private-tokens 5 --cases forward,gradients,split
    step three_direct_silent direct_exchanges --node-processes 1 --processes 3 --cases silent --timeout-s 3
    step three_direct_killed direct_exchanges --node-processes 1 --processes 3 --cases killed --timeout-s 20
    step three_direct_recovered direct_exchanges --node-processes 1 --processes 3 --cases recovered --timeout-s 30 --steps 8
    # Beyond the transport's own patience with a silent peer.
    step three_tcp_killed tcp_exchanges --processes 3 --cases killed --timeout-s 20
    step three_tcp_recovered tcp_exchanges --processes 3 --cases recovered --timeout-s 30 --steps 8
    step four_tcp_layer tcp_exchanges --processes 4 --cases timed --tokens 128 --hidden 7168 --top-k 8 --experts 256 \
      --measured "$out/layers.jsonl" ;;
  hybrid)
    step mps start_mps
    # Two of one node, which store into each other's memory, and one of another.
    for flags in default no_graphs; do
      step "three_of_two_nodes_$flags" direct_exchanges --node-processes 2 --processes 3 --flags "$flags" --steps 20 \
        --cases forward,gradients,scan,split,quantised,vmap
    done
    step three_of_two_nodes_in_rounds direct_exchanges --node-processes 2 --processes 3 --private-tokens 5 \
      --cases forward,gradients,split
    step three_of_two_nodes_silent direct_exchanges --node-processes 2 --processes 3 --cases silent --timeout-s 3
    step three_of_two_nodes_killed direct_exchanges --node-processes 2 --processes 3 --cases killed --timeout-s 20
    step three_of_two_nodes_recovered direct_exchanges --node-processes 2 --processes 3 --cases recovered \
      --timeout-s 30 --steps 8
    # A NIC's transport, and nobody who needs it: the double copies nothing, so all may be in graphs.
    for flags in default all_graphs; do
      step "two_of_one_node_$flags" direct_exchanges --processes 2 --flags "$flags" --steps 20 --cases forward,gradients,scan
    done ;;
  sanitize)
    small='MoeKernelsTest.OneTokenOneRank:MoeKernelsTest.EveryRouting:MoeKernelsTest.Quantised:Rounds.*Rank*'
    step memcheck timeout 250 compute-sanitizer --tool memcheck --error-exitcode 1 "$BIN/moe_kernels_test" --gtest_filter="$small"
    step memcheck_exchange timeout 200 compute-sanitizer --tool memcheck --error-exitcode 1 "$BIN/exchange_test"
    step memcheck_rounds timeout 100 compute-sanitizer --tool memcheck --error-exitcode 1 "$BIN/rounds_test" --gtest_filter="$small"
    step racecheck timeout 250 compute-sanitizer --tool racecheck --error-exitcode 1 "$BIN/moe_kernels_test" --gtest_filter="$small" ;;
  speed)
    step signals signals signals_benchmark
    step proxy signals proxy_benchmark
    step decode_ep64_fp8 benchmark
    step decode_ep64_bf16 benchmark --fp8 0
    step decode_ep8_fp8 benchmark --ranks 8
    step prefill_ep8_fp8 benchmark --ranks 8 --tokens 4096 --graphs 12 ;;
esac

python3 scripts/_gpu_results.py "$out" >>"$table"
echo
cat "$table"
exit $failed
