"""One Ray cluster for the whole session: loopback, its own ports and temporary folder, nothing left behind."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import pytest

from serve.ray_serve import guard
from serve.ray_serve.environment import of_one_run


@pytest.fixture(scope="session", autouse=True)
def cluster():
    folder = tempfile.mkdtemp(prefix="hr", dir="/tmp")  # short: unix sockets have names of 107 bytes at most
    os.environ.update(of_one_run(Path(folder)), RAY_AUTH_MODE="disabled")  # before anything imports ray.serve
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
            _node_ip_address="127.0.0.1",
        )
    watching = guard.begin(Path(folder))
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()
    watching.stdin.close()
    watching.wait()
