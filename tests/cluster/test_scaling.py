"""GPU machines come when work queues, and go when it is gone: on fake nodes, in a Ray of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.serve_scaling import MOST


def test_load_makes_gpu_nodes_appear_and_idleness_makes_them_go():
    command = [sys.executable, "-m", "benchmarks.serve_scaling", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    report = json.loads(ended.stdout)
    found = {figure["name"]: figure["value"] for figure in report["figures"]}
    nodes = found["most GPU nodes under load"], found["GPU nodes left when idle"]
    replicas = found["most replicas under load"], found["replicas left when idle"]
    assert (nodes, replicas, found["requests that failed"]) == ((MOST, 1), (MOST, 1), 0), report["notes"]
