#!/usr/bin/env bash
# Makes .venv-vllm: vLLM's CPU build, and SmolLM2-135M as safetensors. Does nothing when it is there and up to date.
# vLLM wants versions of its own, so it has a venv of its own; 3.8 GB, about four minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

venv=.venv-vllm
wanted=$(cat tests/vllm/requirements.txt tests/vllm/smollm2.py "$0" | sha256sum)
stamp=$venv/.headrace-stamp
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

rm -rf "$venv" # a venv that was left half made is no start
"${PYTHON:-python3.11}" -m venv "$venv"
# The lock names every package, so pip need not resolve, and does not bring back what the lock leaves out.
"$venv/bin/pip" install --quiet --no-deps --requirement tests/vllm/requirements.txt
"$venv/bin/python" tests/vllm/smollm2.py "$venv/smollm2-135m"
printf '%s' "$wanted" >"$stamp"
