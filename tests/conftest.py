"""What holds for every test: no sleeping, no Ray outside tests/cluster, checks that nothing is left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

OURS = ("engine", "operators", "graphs", "serve", "tests", "test_")
WITH_RAY = {Path(__file__).parent / "cluster", Path(__file__).parent / "vllm"}


@pytest.fixture(autouse=True)
def _no_sleep_and_no_ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is a clock that is passed in, and Ray belongs in tests/cluster: both raise when our code asks for them."""
    if WITH_RAY & set(request.path.parents):
        return
    sleep = time.sleep

    def guarded(seconds: float) -> None:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith(OURS):
            raise AssertionError(f"{caller} called time.sleep({seconds}); pass a clock in")
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", guarded)
    ray = sys.modules.get("ray")
    if ray is not None:
        monkeypatch.setattr(ray, "init", _refuse_ray)


def _refuse_ray(*_: object, **__: object) -> None:
    raise AssertionError("ray.init outside tests/cluster")
