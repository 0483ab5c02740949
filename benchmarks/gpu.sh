#!/usr/bin/env bash
# Measure training steps of the paper's size on an offline GPU machine, from the root of the repository:
#
#   benchmarks/gpu.sh WHEELS OUT      WHEELS: the folder of `make gpu-carry`; OUT: where gpu_step.json goes
#
# Nothing is fetched, and the machine's torch stays as it is: wheels go into a folder of their own. To show the
# figures in docs/results/benchmarks/README.md: copy OUT/gpu_step.json to docs/results/benchmarks/, then
# `python benchmarks/run_all.py --page`.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: benchmarks/gpu.sh WHEELS OUT" >&2; exit 2; }
wheels=$1 out=$2
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
"$python" benchmarks/gpu_step.py --out "$out"
