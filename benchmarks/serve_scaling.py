"""Do GPU machines come when work queues, and go when it is gone?

A Ray head with an autoscaler (v2) over fake machines, which are Ray nodes of this one: the type `gpu` has one GPU, none
to three of them. A graph is served whose stage asks for one GPU and may have one to three replicas, scaled on seconds
of queued work. Clients then ask for more than one replica can do, and stop; the replicas and nodes that there are, are
noted each second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.report import Figure, emit
from engine.graph import graph
from engine.policy import Policy
from engine.stage import Resources, Scaling, Stage

QUESTION = __doc__.splitlines()[0]
MOST, WORK_S, CLIENTS = 3, 0.1, 24
_HEAD, _HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"  # the fake provider knows no other head


class Model:
    """Does one thing at a time, for 100 ms."""

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s
        self._slot = asyncio.Lock()

    async def work(self, n: int) -> int:
        async with self._slot:
            await asyncio.sleep(self._work_s)
        return n


def graphs() -> list[Any]:
    """One graph, one stage on GPUs."""
    scaling = Scaling(least=1, most=MOST, queued_s=0.5, up_after_s=1.0, down_after_s=5.0)
    model = Stage("model", partial(Model, WORK_S), resources=Resources(cpus=0.1, gpus=1), scaling=scaling)
    step = model.step(Model.work, policy=Policy(idempotent=True))

    @graph
    def work(n: int) -> int:
        return step(n)

    return [work]


def autoscaler_config(port: int) -> dict[str, Any]:
    """Of fake machines: nothing is started elsewhere."""
    commands = ["setup_commands", "head_setup_commands", "worker_setup_commands", "initialization_commands"]
    commands += ["head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files"]
    return {
        "cluster_name": "fake",
        "max_workers": MOST,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": f"127.0.0.1:{port}",
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": _HEAD,
        },
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "head_node_type": _HEAD_TYPE,
        "available_node_types": {
            "gpu": {
                "resources": {"CPU": 1, "GPU": 1, "object_store_memory": 80_000_000},
                "node_config": {},
                "min_workers": 0,
                "max_workers": MOST,
            },
            _HEAD_TYPE: {"resources": {"CPU": 3, "head": 1}, "node_config": {}, "max_workers": 0},
        },
        **{name: [] for name in commands},
    }


class Cluster:
    """The head, and what there is of nodes and replicas.

    Args:
        folder: For everything that Ray writes.
    """

    def __init__(self, folder: Path) -> None:
        from serve.ray_serve.environment import free_ports, of_one_run

        os.environ.update(of_one_run(folder), RAY_AUTH_MODE="disabled")
        os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        self.port, self.http = free_ports(2)
        config = folder / "autoscaler.yaml"
        config.write_text(yaml.safe_dump(autoscaler_config(self.port)), encoding="utf-8")
        fake = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "RAY_enable_autoscaler_v2": "1"}
        fake |= {"RAY_CLOUD_INSTANCE_ID": _HEAD, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD}
        line = [
            str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={self.port}", "--num-cpus=3",
            "--node-ip-address=127.0.0.1", f"--autoscaling-config={config}", "--object-store-memory=100000000",
            f"--temp-dir={folder / 'ray'}", "--include-dashboard=false", "--disable-usage-stats", "--block",
            '--resources={"head":1}',
        ]  # fmt: skip
        with (folder / "head.log").open("wb") as log:
            self.head = subprocess.Popen(
                line, env={**os.environ, **fake}, stdout=log, stderr=log, start_new_session=True
            )

    def start(self) -> None:
        """Connect, and serve."""
        import ray
        from ray import serve

        from benchmarks.serve_scaling import graphs as served  # of the module that replicas can import
        from serve.ray_serve.application import application

        deadline = time.monotonic() + 90
        while True:
            try:
                ray.init(address=f"127.0.0.1:{self.port}", log_to_driver=False, logging_level="error")
                break
            except (ConnectionError, RuntimeError, ValueError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": self.http})
        serve.run(application(served), name="scaling", route_prefix="/")

    def count(self) -> tuple[int, int]:
        """GPU nodes that live, and replicas that run."""
        import ray
        from ray import serve

        nodes = sum(node["Alive"] and node["Resources"].get("GPU", 0) > 0 for node in ray.nodes())
        model = serve.status().applications["scaling"].deployments["model"]
        return nodes, model.replica_states.get("RUNNING", 0)

    def stop(self) -> None:
        """End the head; the guard of the folder ends the fake nodes."""
        import ray
        from ray import serve

        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        os.killpg(self.head.pid, signal.SIGTERM)
        try:
            self.head.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.head.pid, signal.SIGKILL)
            self.head.wait()


async def watch(cluster: Cluster, seconds: float, until: Any) -> tuple[float, list[tuple[int, int]]]:
    """Seconds until the counts are as wanted, and the counts of each second."""
    began, seen = time.monotonic(), []
    while time.monotonic() - began < seconds:
        seen.append(await asyncio.to_thread(cluster.count))
        print(f"{time.monotonic() - began:.0f} s: GPU nodes, replicas: {seen[-1]}", file=sys.stderr, flush=True)
        if until(*seen[-1]):
            break
        await asyncio.sleep(1)
    return time.monotonic() - began, seen


async def measure(cluster: Cluster, patience_s: float) -> tuple[list[Figure], list[str]]:
    """Load, and then none."""
    url = f"http://127.0.0.1:{cluster.http}/v1/graphs/work"
    answered, failed = 0, 0
    loaded = True

    async def ask_on(http: aiohttp.ClientSession) -> None:
        nonlocal answered, failed
        while loaded:
            async with http.post(url, json={"n": 7}) as response:
                right = response.status == 200 and json.loads(await response.read())["result"] == 7
                answered += right
                failed += not right

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        before = await asyncio.to_thread(cluster.count)
        clients = [asyncio.create_task(ask_on(http)) for _ in range(CLIENTS)]
        up_s, up = await watch(cluster, patience_s, lambda nodes, replicas: (nodes, replicas) == (MOST, MOST))
        await asyncio.sleep(3)
        loaded = False
        await asyncio.gather(*clients)
        down_s, down = await watch(cluster, patience_s, lambda nodes, replicas: (nodes, replicas) == (1, 1))
    figures = [
        Figure.over_runs("most replicas under load", [max(r for _, r in up)], "1", lower_is_better=False),
        Figure.over_runs("most GPU nodes under load", [max(n for n, _ in up)], "1", lower_is_better=False),
        Figure.over_runs("until they run", [up_s], "s"),
        Figure.over_runs("replicas left when idle", [down[-1][1]], "1"),
        Figure.over_runs("GPU nodes left when idle", [down[-1][0]], "1"),
        Figure.over_runs("until they have gone", [down_s], "s"),
        Figure.over_runs("requests that failed", [failed], "1"),
    ]
    told = [f"before: {before}; (GPU nodes, replicas) under load: {up}; without: {down}", f"answered: {answered}"]
    return figures, told


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds to wait for machines to come, and to go")
    args = parser.parse_args()
    from serve.ray_serve.guard import guarded_folder

    with guarded_folder() as folder, contextlib.redirect_stdout(sys.stderr):  # Ray prints there what its raylet says
        cluster = Cluster(folder)
        try:
            cluster.start()
            figures, notes = asyncio.run(measure(cluster, args.patience))
        finally:
            cluster.stop()
    emit(
        QUESTION,
        figures,
        seed=0,
        warm_up="none",
        runs="once",
        packages=("ray",),
        as_json=args.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
