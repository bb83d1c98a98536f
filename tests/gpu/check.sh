#!/bin/sh
# What only a GPU can tell, in ten minutes of one: partition, lanes, noise gate, token-exact stages, and how far the
# estimate of a model is off what is measured with dummy weights. Prints a short table; status 0 if all holds, 1 if
# something does not, 3 without a GPU.
#
#     tests/gpu/check.sh [MODEL]          default qwen2.5-vl-7b; --rehearse runs it on the CPU, to try the script itself
cd "$(dirname "$0")/../.." || exit 3
PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
exec timeout 600 "$PYTHON" -m tests.gpu.check "$@"
