#!/usr/bin/env bash
# Measure on an offline GPU machine what has not run on one, from the root of the repository:
#
#   benchmarks/gpu.sh WHEELS OUT [PART …]      WHEELS: the folder of `make gpu-carry`; OUT: where figures go
#
#   steps     a step of SFT and of GRPO at the size of recipes/paper/med3d_r1.toml, memory beside `evid plan`'s
#   tokens    sampling by CUDA graphs beside launch by launch, in little and at the paper's size
#   engine    a GRPO step beside stock trl's, with its head on answers only too
#   segment   medsam2 in float32 and bfloat16 beside the predictor's logits, and through 200 slices
#   recipes   med3d_r1 and medvr whole, a few steps a stage
#   vlm       SFT, GRPO, evaluation and audit of Qwen3-VL-4B's shape, memory beside `evid plan`'s
#   frozen    the same, what no stage trains kept in bfloat16
#
# Without PART all of them. Each ends within 9 minutes; what one prints is in OUT/PART.txt. Nothing is fetched,
# and the machine's torch stays as it is: wheels go into a folder of their own. To show figures in
# docs/results/benchmarks/README.md: copy OUT/gpu_step.json and OUT/grpo_step_gpu.json to docs/results/benchmarks/,
# then `python benchmarks/run_all.py --page`.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: benchmarks/gpu.sh WHEELS OUT [steps|tokens|engine|segment|recipes|vlm|frozen …]" >&2; exit 2; }
wheels=$1 out=$2
shift 2
for part in "$@"; do
  case $part in
    steps | tokens | engine | segment | recipes | vlm | frozen) ;;
    *) echo "no part '$part'. There are steps, tokens, engine, segment, recipes, vlm and frozen." >&2; exit 2 ;;
  esac
done
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "$python is older than 3.11. Name another: PYTHON=python3.12 benchmarks/gpu.sh $wheels $out" >&2; exit 2; }
"$python" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else 3)' ||
  { echo "no CUDA device that the torch of $python sees: nothing to measure on. nvidia-smi shows what is there." >&2; exit 3; }
ls "$wheels"/*.whl >/dev/null 2>&1 ||
  { echo "$wheels holds no wheels. Collect them where there is a network: make gpu-carry" >&2; exit 2; }
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
if [ -e "$site/torch" ]; then echo "$wheels holds a torch, which would hide the machine's. Take it out." >&2; exit 2; fi
export PYTHONPATH="$site" HF_HUB_OFFLINE=1
mkdir -p "$out"
failed=0
run() {  # PART COMMAND …
  echo "$1" >&2
  timeout 540 "$python" "${@:2}" 2>&1 | tee "$out/$1.txt" || { echo "$1: ended with status $?, see $out/$1.txt" >&2; failed=1; }
}
for part in ${@:-steps tokens engine segment recipes vlm frozen}; do
  case $part in
    steps) run steps benchmarks/gpu_step.py --out "$out" ;;
    tokens) run tokens benchmarks/step_graph.py --paper ;;
    engine)
      run engine benchmarks/grpo_step.py --device cuda --json
      sed -n '/^{/,$p' "$out/engine.txt" >"$out/grpo_step_gpu.json"
      ;;
    segment) run segment benchmarks/medsam2_parity.py --device cuda --dtype float32 --dtype bfloat16 --slices 200 ;;
    recipes) run recipes benchmarks/short_runs.py --out "$out/short" med3d_r1 medvr ;;
    vlm) run vlm benchmarks/gpu_vlm.py ;;
    frozen) run frozen benchmarks/gpu_vlm.py --bfloat16 ;;
  esac
done
exit $failed
