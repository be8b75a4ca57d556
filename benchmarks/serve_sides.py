"""What benchmarks of serving compare, each in a process with a Ray of its own: headrace, and plain Ray Serve.

`python -m benchmarks.serve_sides MODE` starts the applications of one mode of Serve ("optimised": HAProxy and gRPC, the
one that headrace runs in, with both sides; "default": plain Serve alone), prints their addresses as JSON, and ends with
its standard input. The operators are the same on both sides: functions and classes of this module.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from benchmarks.processes import processes
from benchmarks.tokens import Tokens
from engine.graph import graph
from engine.stage import Resources, Stage
from engine.step import step
from engine.stream import Stream
from serve.gateway.config import GatewayConfig

SHARDS = 3
_SMALL = Resources(cpus=0.1)


class Hit(msgspec.Struct, array_like=True, frozen=True):
    """An id and its score."""

    id: str
    score: float


class Shard:
    """Takes 1 ms to find 100 hits."""

    def __init__(self, number: int) -> None:
        self._hits = [Hit(f"document-{number}-{i}", 1 / (1 + i)) for i in range(100)]

    async def search(self, plan: str) -> list[Hit]:
        await asyncio.sleep(0.001)
        return self._hits


class Ranker:
    """Gives the hits back as they came."""

    async def rerank(self, plan: str, hits: list[Hit]) -> list[Hit]:
        return hits


def plan(question: str) -> str:
    """What to look for."""
    return question.lower()


def fuse(rankings: list[list[Hit]]) -> list[Hit]:
    """The ten best of several rankings by reciprocal rank."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking):
            scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (60 + rank)
    best = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
    return [Hit(id_, score) for id_, score in best]


def _one(rankings: list[list[Hit]]) -> list[Hit]:
    return [hit for ranking in rankings for hit in ranking]


def graphs() -> list[Any]:
    """The graphs that headrace serves."""
    generate = Stage("tokens", Tokens, resources=_SMALL).step(Tokens.generate)
    search_shards = Stage("shard", Shard, shards=SHARDS, resources=_SMALL).gather(Shard.search, _one)
    rerank = Stage("ranker", Ranker, resources=_SMALL).step(Ranker.rerank)
    plan_step, fuse_step = step(plan), step(_fuse_gathered, name="fuse")

    @graph
    def relay(n: int, pace_s: float) -> Stream[str]:
        return generate(n, pace_s)

    @graph
    def search(question: str) -> list[Hit]:
        planned = plan_step(question)
        return rerank(planned, fuse_step(search_shards(planned)))

    return [relay, search]


def _fuse_gathered(hits: list[Hit]) -> list[Hit]:
    return fuse([hits[i : i + 100] for i in range(0, len(hits), 100)])


def plain() -> tuple[Any, Any]:
    """Plain Serve's side: a relay of one hop, and a search of seven deployments."""
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse

    def deployed(kind: type, name: str, *args: Any) -> Any:
        options = {"ray_actor_options": {"num_cpus": 0.1}, "max_ongoing_requests": 1000}
        return serve.deployment(kind).options(name=name, **options).bind(*args)

    class Relay:
        def __init__(self, tokens: Any) -> None:
            self._tokens = tokens.options(stream=True)

        async def __call__(self, request: Request) -> StreamingResponse:
            body = await request.json()

            async def events() -> AsyncIterator[str]:
                async for item in self._tokens.generate.remote(body["n"], body["pace_s"]):
                    yield f"data: {item}\n\n"

            return StreamingResponse(events(), media_type="text/event-stream")

    class Plan:
        async def __call__(self, question: str) -> str:
            return plan(question)

    class Fuse:
        async def __call__(self, *rankings: list[Hit]) -> list[Hit]:
            return fuse(list(rankings))

    class Search:
        def __init__(self, plan: Any, fuse: Any, ranker: Any, *shards: Any) -> None:
            self._plan, self._fuse, self._ranker, self._shards = plan, fuse, ranker, shards

        async def __call__(self, request: Request) -> Response:
            planned = await self._plan.remote((await request.json())["question"])
            found = await asyncio.gather(*(shard.search.remote(planned) for shard in self._shards))
            hits = await self._ranker.rerank.remote(planned, await self._fuse.remote(*found))
            return Response(msgspec.json.encode(hits), media_type="application/json")

    shards = [deployed(Shard, f"shard-{number}", number) for number in range(SHARDS)]
    relay = deployed(Relay, "relay", deployed(Tokens, "tokens"))
    parts = (deployed(Plan, "plan"), deployed(Fuse, "fuse"), deployed(Ranker, "ranker"))
    return relay, deployed(Search, "search", *parts, *shards)


def run_side(mode: str) -> None:
    """Serve the sides of one mode until standard input ends."""
    from serve.ray_serve.environment import MODE, free_ports
    from serve.ray_serve.foreground import ray_serve

    os.environ["RAY_AUTH_MODE"] = "disabled"
    port = free_ports(1)[0]
    root = f"http://127.0.0.1:{port}"
    with ray_serve("127.0.0.1", port, cpus=8, mode=MODE if mode == "optimised" else {}):
        from ray import serve

        relay, search = plain()
        serve.run(relay, name="relay", route_prefix="/relay")
        serve.run(search, name="search", route_prefix="/search")
        addresses = {f"serve {mode}": {"relay": f"{root}/relay", "search": f"{root}/search"}}
        if mode == "optimised":
            from serve.ray_serve.application import application

            config = GatewayConfig(active=256)
            serve.run(application(graphs, config), name="headrace", route_prefix="/")
            addresses["headrace"] = {name: f"{root}/v1/graphs/{name}" for name in ("relay", "search")}
        print(json.dumps(addresses), flush=True)
        sys.stdin.read()


@contextmanager
def sides() -> Iterator[dict[str, dict[str, str]]]:
    """Both modes running, and by side and workload the address of each."""
    commands = [("benchmarks.serve_sides", mode) for mode in ("optimised", "default")]
    with processes(*commands) as (optimised, default):
        yield optimised | default


if __name__ == "__main__":
    from benchmarks import serve_sides  # this module by its name, by which replicas can import it, too

    serve_sides.run_side(sys.argv[1])
