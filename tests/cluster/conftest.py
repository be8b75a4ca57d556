"""One Ray cluster for the whole session: loopback, its own temporary folder, nothing left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def cluster():
    folder = tempfile.mkdtemp(prefix="hr", dir="/tmp")  # short: unix sockets have names of 107 bytes at most
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    # Actors import test modules by name, so the checkout must be on their path.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own deprecations and unclosed files at start
        import ray

        ray.init(
            num_cpus=4,  # logical: the tests' actors are small
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=100 * 2**20,
            _temp_dir=folder,
        )
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
