"""These tests run in the venv that setup_venv.sh makes (`make test-vllm`); elsewhere there is nothing to collect."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from operators.models.vllm_engine import VllmConfig, vllm_environment

SMOLLM2 = Path(sys.prefix) / "smollm2-135m"
CONFIG = VllmConfig(
    model=str(SMOLLM2), max_model_len=512, max_num_seqs=16, enforce_eager=True, dtype="bfloat16", executor="uni"
)

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ.update(vllm_environment(CONFIG))  # read when vllm is imported, inherited by its engine process


@pytest.fixture(scope="session")
def config() -> VllmConfig:
    """SmolLM2 with a window of 512 tokens."""
    return CONFIG
