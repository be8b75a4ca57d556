"""An application of headrace on Ray Serve in a process of its own, for benchmarks that load it or kill parts of it.

The parent's side is `stand`; the child is `python -m benchmarks.serve_stand`, told as JSON on its command line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.processes import processes
from engine.graph import graph
from engine.policy import Policy
from engine.stage import Resources, Stage
from engine.stream import Stream
from serve.gateway.config import GatewayConfig

SLOW_S = 0.2
_HEALTH = {  # of nodes: Ray's own take 13 s to notice a death
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What stands there.

    Args:
        shards: Of the stage that `find` asks.
        replicas: Of each shard, of the ranker and of the writer.
        gateways: Replicas of the gateway.
        nodes: Ray nodes besides the head, each with room for everything; 0 puts all on the head.
        stragglers: Share of a shard's calls that take 200 ms.
        asleep: A shard that never answers; -1 for none.
        budget_s: Seconds that shards may take.
        work_s: Seconds that a call of `work` keeps its one slot.
        config: Limits of the gateway.
        corpus: Folder of a corpus: then its ready-made graphs stand there, and of the above only `gateways` counts.
        configuration: Path of their configuration file.
    """

    shards: int = 4
    replicas: int = 1
    gateways: int = 1
    nodes: int = 0
    stragglers: float = 0.0
    asleep: int = -1
    budget_s: float = 2.0
    work_s: float = 0.02
    config: GatewayConfig = msgspec.field(default_factory=GatewayConfig)
    corpus: str = ""
    configuration: str | None = None


class Shard:
    """Answers which shard it is, from which process, and a number that only it makes of the question."""

    def __init__(self, number: int, stragglers: float, *, asleep: bool) -> None:
        self._number = number
        self._stragglers = stragglers
        self._asleep = asleep
        self._calls = 37 * number
        self.weight = 1000.0 + number

    async def find(self, n: int) -> list[list[int]]:
        self._calls += 1
        if self._asleep:
            await asyncio.Event().wait()
        slow = self._stragglers and self._calls % round(1 / self._stragglers) == 0
        await asyncio.sleep(SLOW_S if slow else 0.001)
        return [[self._number, os.getpid(), 7 * n + self._number]]


class Ranker:
    """Gives the hits back, with its own process before them."""

    async def rank(self, hits: list[list[int]]) -> list[list[int]]:
        return [[-1, os.getpid(), 0], *hits]


class Writer:
    """Writes numbers, one every 10 ms."""

    def __init__(self) -> None:
        self.made = 0
        self.running = 0

    async def write(self, n: int, items: int) -> AsyncIterator[int]:
        self.running += 1
        try:
            yield os.getpid()
            for i in range(items):
                await asyncio.sleep(0.01)
                yield n + i
        finally:
            self.running -= 1

    async def fill(self, kibibytes: int) -> AsyncIterator[str]:
        self.running += 1
        try:
            for _ in range(kibibytes):
                self.made += 1
                yield "w" * 1024
        finally:
            self.running -= 1

    async def about(self, n: int) -> list[int]:
        return [self.made, self.running, os.getpid()]


class Worker:
    """Has one slot, so its capacity is known."""

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s
        self._slot = asyncio.Lock()

    async def work(self, n: int) -> int:
        async with self._slot:
            await asyncio.sleep(self._work_s)
        return n


def together(found: list[list[list[int]]]) -> list[list[int]]:
    """The hits of all shards."""
    return [hit for hits in found for hit in hits]


def graphs(setting: Setting) -> list[Any]:
    """find, write, fill, about and work."""
    where = Resources(cpus=0.05, custom={"anywhere": 0.001} if setting.nodes else {})
    again = Policy(idempotent=True)
    quorum = Policy(idempotent=True, coverage=0.5, time_s=setting.budget_s)
    shard = Stage("shard", partial(_shard, setting), shards=setting.shards, replicas=setting.replicas, resources=where)
    ranker = Stage("ranker", Ranker, replicas=setting.replicas, resources=where)
    writer = Stage("writer", Writer, replicas=setting.replicas, resources=where)
    worker = Stage("worker", partial(Worker, setting.work_s), resources=where)
    find_step, rank_step = shard.gather(Shard.find, together, policy=quorum), ranker.step(Ranker.rank, policy=again)
    write_step, about_step = writer.step(Writer.write, policy=again), writer.step(Writer.about)
    fill_step, work_step = writer.step(Writer.fill), worker.step(Worker.work)

    @graph
    def find(n: int) -> list[list[int]]:
        return rank_step(find_step(n))

    @graph
    def write(n: int, items: int) -> Stream[int]:
        return write_step(n, items)

    @graph
    def fill(kibibytes: int) -> Stream[str]:
        return fill_step(kibibytes)

    @graph
    def about(n: int) -> list[int]:
        return about_step(n)

    @graph
    def work(n: int) -> int:
        return work_step(n)

    return [find, write, fill, about, work]


def _shard(setting: Setting, number: int) -> Shard:
    return Shard(number, setting.stragglers, asleep=number == setting.asleep)


class Stand:
    """What `stand` yields.

    Args:
        url: Of the front.
        folder: All processes of this run name it in their command line or environment.
        raylets: Process ids of the raylets of nodes besides the head.
    """

    def __init__(self, url: str, folder: str, raylets: list[int]) -> None:
        self.url = url
        self.folder = folder
        self.raylets = raylets

    def processes(self) -> dict[int, str]:
        """Process ids of its replicas, proxies and workers, and their titles."""
        from serve.ray_serve import guard

        found = {}
        for pid in guard.of_folder(self.folder):
            try:
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            except OSError:
                continue
        return found

    def replicas(self, deployment: str) -> list[int]:
        """Process ids of a deployment's replicas."""
        return [pid for pid, title in self.processes().items() if title.endswith(f":{deployment}")]

    def resident_mib(self) -> dict[int, float]:
        """Resident memory of each of its processes."""
        page = os.sysconf("SC_PAGE_SIZE")
        found = {}
        for pid in self.processes():
            try:
                found[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page / 2**20
            except OSError:
                continue
        return found


@contextmanager
def stand(setting: Setting) -> Iterator[Stand]:
    """An application that runs inside the block."""
    with processes(("benchmarks.serve_stand", msgspec.json.encode(setting).decode())) as (told,):
        yield Stand(**told)


def run_stand(setting: Setting) -> None:
    """Run the application until standard input ends."""
    from serve.ray_serve.environment import free_ports
    from serve.ray_serve.foreground import ray_serve

    os.environ["RAY_AUTH_MODE"] = "disabled"
    port = free_ports(1)[0]
    if setting.nodes:
        with _ray_of_nodes(setting.nodes, port) as (folder, raylets):
            _serve(setting, port, folder, raylets)
    else:
        with ray_serve("127.0.0.1", port, cpus=16) as folder:
            _serve(setting, port, folder, [])


def _serve(setting: Setting, port: int, folder: Path, raylets: list[int]) -> None:
    from ray import serve

    from serve.ray_serve.application import application, ready_application
    from serve.ray_serve.arguments import ServeArguments

    if setting.corpus:
        asked = ServeArguments(corpus=setting.corpus, config=setting.configuration, gateways=setting.gateways)
        app = ready_application(asked)
    else:
        app = application(partial(graphs, setting), setting.config, gateways=setting.gateways)
    serve.run(app, name="stand", route_prefix="/")
    print(json.dumps({"url": f"http://127.0.0.1:{port}", "folder": str(folder), "raylets": raylets}), flush=True)
    sys.stdin.read()


@contextmanager
def _ray_of_nodes(nodes: int, port: int) -> Iterator[tuple[Path, list[int]]]:
    """A Ray of several nodes on this machine with Serve inside the block, and its raylets besides the head's."""
    from serve.ray_serve.environment import of_one_run, set_environment
    from serve.ray_serve.guard import guarded_folder

    memory = 80 * 2**20
    head = {"num_cpus": 4, "object_store_memory": memory, "_system_config": _HEALTH, "include_dashboard": False}
    with guarded_folder() as folder:
        set_environment({**of_one_run(folder), "RAY_TMPDIR": str(folder)})
        import ray
        from ray import serve
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=head)
        added = [
            cluster.add_node(num_cpus=8, object_store_memory=memory, resources={"anywhere": 1}) for _ in range(nodes)
        ]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error", configure_logging=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        yield folder, [node.all_processes["raylet"][0].process.pid for node in added]
        signal.alarm(60)  # nodes that were killed must not keep us
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    from benchmarks import serve_stand  # this module by its name, by which replicas can import it, too

    serve_stand.run_stand(msgspec.json.decode(sys.argv[1], type=serve_stand.Setting))
