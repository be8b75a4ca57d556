#!/usr/bin/env bash
# Makes .venv-vllm: vLLM's CPU build, and SmolLM2-135M as safetensors. Does nothing when both are there and up to date.
# vLLM wants versions of its own, so it has a venv of its own: 4.0 GB, about four minutes on two idle cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

venv=.venv-vllm
model=$venv/smollm2-135m
stamp=$venv/.headrace-stamp
wanted=$(sha256sum <tests/vllm/requirements.txt)

if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
    rm -rf "$venv" # a venv that was left half made is no start
    "${PYTHON:-python3.11}" -m venv "$venv"
    # The list names every package, so pip need not resolve, and does not bring back what the list leaves out.
    "$venv/bin/pip" install --quiet --no-deps --requirement tests/vllm/requirements.txt
    printf '%s' "$wanted" >"$stamp"
fi

if [[ ! -d $model ]]; then
    rm -rf "$model.part"
    TQDM_DISABLE=1 "$venv/bin/python" tests/vllm/smollm2.py "$model.part"
    mv "$model.part" "$model" # whole or not at all
fi
