#!/bin/sh
# The tests that need a GPU, then the bench: one command, some minutes on one card.
set -e
cd "$(dirname "$0")/../.."
PY=${PY:-.venv/bin/python}
"$PY" -m pytest -q -m gpu tests/gpu
"$PY" bench/gpu/train.py --folder "$(mktemp -d)" "$@"
