"""One Ray cluster for the whole session: loopback, its own ports and temporary folder, nothing left behind."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from serve.ray_serve.environment import of_one_run
from serve.ray_serve.guard import guarded_folder


@pytest.fixture(scope="session", autouse=True)
def cluster():
    with guarded_folder() as folder:
        yield from _ray_in(folder)


def _ray_in(folder):
    os.environ.update(of_one_run(folder), RAY_AUTH_MODE="disabled")  # before anything imports ray.serve
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
            _temp_dir=str(folder),
            _node_ip_address="127.0.0.1",
        )
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()
