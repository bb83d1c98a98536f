#!/bin/sh
# What only a GPU can tell, in ten minutes of one: partition, lanes, noise gate, token-exact stages, how far the estimate
# of a model is off what is measured with dummy weights, and a quick profile of it. Prints a table and keeps it, line by
# line, in results/gpu-check/check.jsonl; status 0 if all holds, 1 if something does not, 3 without a GPU.
#
#     tests/gpu/check.sh [MODEL] [--out DIR] [--seconds N] [--only STEP]...        default qwen2.5-vl-7b
#     tests/gpu/check.sh --rehearse                                                on the CPU, to try the script itself
#
# Needs torch, transformers, cuda-bindings and nvidia-ml-py where it runs; a step that misses something fails alone.
cd "$(dirname "$0")/../.." || exit 3
PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
exec timeout 600 "$PYTHON" -u -m tests.gpu.check "$@"
