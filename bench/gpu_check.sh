#!/usr/bin/env bash
# Everything that needs a GPU, in one run of at most eight minutes, and a page that sums it up.
#
#   bench/gpu_check.sh              on a GPU
#   bench/gpu_check.sh --cpu        the same steps, reduced, in Triton's interpreter: that none of them is run for the
#                                   first time on a GPU; its times mean nothing
#
# PYTHON names the interpreter, OUT the folder of what is written (default: runs/gpu_check).
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
OUT=${OUT:-runs/gpu_check}
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT"
rm -f "$OUT"/*.json "$OUT"/*.log "$OUT"/steps.txt

case "${1:-}" in
  --cpu) where=cpu; export TRITON_INTERPRET=1 ;;
  '') where=cuda ;;
  *) echo "usage: bench/gpu_check.sh [--cpu]" >&2; exit 2 ;;
esac

step() {  # name, most seconds, command…
  local name=$1 limit=$2 start=$SECONDS code=0
  shift 2
  echo "==> $name"
  timeout "$limit" "$@" > "$OUT/$name.log" 2>&1 || code=$?
  echo "$name $code $((SECONDS - start))" >> "$OUT/steps.txt"
  [ "$code" = 0 ] || tail -n 15 "$OUT/$name.log"
}

# Compiling kernels for many shapes is the processor's work: the tests' files go side by side.
files() {  # most at once, then pytest's words for each of the files on standard input
  local most=$1
  shift
  xargs -P "$most" -I{} "$PYTHON" -m pytest -q -m kernels "$@" tests/kernels/fused/{}
}
export -f files
export PYTHON

if [ "$where" = cuda ]; then
  step tests 120 bash -c 'printf "%s\n" test_{accept,compiles,engine,injection,walk}.py | files 5'
  step kernels 85 "$PYTHON" bench/kernels.py --size qwen3-8b --batches 1,64 --compile --json "$OUT/kernels.json"
  step round 110 "$PYTHON" bench/draft_round.py --size qwen3-8b --batches 1,8,64 --kernels fused --captured --compile \
    --runs 12 --json "$OUT/round.json"
  step sampled 40 "$PYTHON" bench/draft_round.py --size qwen3-8b --drafters dspine,dflash2 --batches 1,8 --kernels fused \
    --captured --temperature 1 --runs 12 --json "$OUT/sampled.json"
  step captured 75 "$PYTHON" bench/captured.py --size qwen3-8b --batches 1,8 --compile --json "$OUT/captured.json"
  step train 50 "$PYTHON" bench/train_step.py --device cuda --sizes qwen3-8b --turns 1
else
  step tests 580 bash -c \
    'printf "%s\n" test_{accept,engine,injection,walk}.py | files 2 -k "write_back or greedy or truncated"'
  step kernels 300 "$PYTHON" bench/kernels.py --size tiny --device cpu --batches 1 --runs 1 --json "$OUT/kernels.json"
  step round 300 "$PYTHON" bench/draft_round.py --size tiny --device cpu --dtype float32 --batches 1,2 --kernels fused \
    --captured --compile --runs 1 --context 40 --json "$OUT/round.json"
  step sampled 300 "$PYTHON" bench/draft_round.py --size tiny --device cpu --dtype float32 --drafters dspine,dflash2 \
    --batches 1 --kernels fused --captured --temperature 1 --runs 1 --context 40 --json "$OUT/sampled.json"
  step captured 300 "$PYTHON" bench/captured.py --size tiny --device cpu --dtype float32 --batches 1,2 --context 40 \
    --rounds 3 --compile --json "$OUT/captured.json"
  step train 580 "$PYTHON" bench/train_step.py --sizes small --steps 1 --turns 1
fi
"$PYTHON" bench/gpu_summary.py "$OUT"
