"""How fast do tokens come from an actor to its caller?

headrace's credit pulls against Ray's streaming generators, from actors of one cluster, interleaved in one run: 1 and
16 streams that flood, 32 streams of a generator that sleeps 10 ms between tokens for 2 s, and the time to the first
token on an otherwise idle cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import ray

from benchmarks.report import Figure, against_others, emit, percentile
from benchmarks.tokens import Tokens
from engine.graph import Graph, graph
from engine.ray.cluster import ensure_ray
from engine.run import start
from engine.stage import Resources, Stage
from engine.stream import Stream

QUESTION = __doc__.splitlines()[0]
PACE_S = 0.01
PACED_ITEMS = 200
PACED_STREAMS = 32
UNITS = {"flooding": ("items/s", False), "ideal": ("ratio", True), "token": ("ms", True)}

Open = Callable[[int, float], AsyncIterator[str]]


def tokens_graph(*, live: bool) -> Graph[[int, float], Stream[str]]:
    """One stage that streams."""
    generate = Stage("tokens", Tokens, resources=Resources(cpus=0.1)).step(Tokens.generate, live=live)

    @graph
    def tokens(n: int, pace_s: float) -> Stream[str]:
        return generate(n, pace_s)

    return tokens


async def drain(items: AsyncIterator[str]) -> tuple[int, float]:
    """Items that came, and seconds to the first."""
    began, first, count = time.perf_counter(), 0.0, 0
    async for _ in items:
        if not count:
            first = time.perf_counter() - began
        count += 1
    return count, first


async def flood(open_: Open, streams: int, items: int) -> float:
    """Items a second over all streams."""
    began = time.perf_counter()
    counts = await asyncio.gather(*(drain(open_(items, 0.0)) for _ in range(streams)))
    took = time.perf_counter() - began
    if [c for c, _ in counts] != [items] * streams:
        raise RuntimeError(f"items were lost: {counts}")
    return streams * items / took


async def paced(open_: Open) -> float:
    """Wall seconds over the ideal for 32 paced streams."""
    began = time.perf_counter()
    await asyncio.gather(*(drain(open_(PACED_ITEMS, PACE_S)) for _ in range(PACED_STREAMS)))
    return (time.perf_counter() - began) / (PACE_S * PACED_ITEMS)


async def first_tokens(open_: Open, n: int) -> list[float]:
    """Seconds to the first token of short streams, one at a time."""
    return [(await drain(open_(3, 0.0)))[1] for _ in range(n)]


async def sides(live: bool) -> tuple[Any, dict[str, Open]]:
    """Both ways of streaming, from one actor each."""

    @ray.remote(num_cpus=0.1, max_concurrency=1000)
    class RayTokens:
        @ray.method(num_returns="streaming")
        async def generate(self, n: int, pace_s: float) -> AsyncIterator[str]:
            async for item in Tokens().generate(n, pace_s):
                yield item

    actor = RayTokens.remote()

    async def ray_stream(n: int, pace_s: float) -> AsyncIterator[str]:
        async for ref in actor.generate.remote(n, pace_s):
            yield await ref

    context = start(tokens_graph(live=live), engine="ray")
    running = await context.__aenter__()

    async def ours(n: int, pace_s: float) -> AsyncIterator[str]:
        async for item in await running(n, pace_s):
            yield item

    return context, {"ray generator": ray_stream, "headrace": ours}


async def measure(args: argparse.Namespace) -> list[Figure]:
    """All figures; every round runs both sides of every test."""
    ensure_ray()
    context, both = await sides(args.live)
    seen: dict[str, dict[str, list[float]]] = {side: {} for side in both}
    for open_ in both.values():
        await flood(open_, 2, 200)
        await first_tokens(open_, 20)

    def note(side: str, test: str, value: float) -> None:
        seen[side].setdefault(test, []).append(value)

    for _ in range(args.runs):
        for side, open_ in both.items():
            note(side, "1 stream flooding", await flood(open_, 1, args.items))
        for side, open_ in both.items():
            note(side, "16 streams flooding", await flood(open_, 16, args.items // 4))
        for side, open_ in both.items():
            note(side, "32 paced streams, wall over ideal", await paced(open_))
        firsts: dict[str, list[float]] = {side: [] for side in both}
        for _ in range(10):
            for side, open_ in both.items():
                firsts[side] += await first_tokens(open_, 10)
        for side in both:
            note(side, "time to first token p50", percentile(firsts[side], 50) * 1e3)
            note(side, "time to first token p99", percentile(firsts[side], 99) * 1e3)
    await context.__aexit__(None, None, None)
    return against_others(seen, UNITS)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--items", type=int, default=4000, help="items of a flooding stream")
    parser.add_argument("--live", action="store_true", help="declare the producer live instead of pausable")
    args = parser.parse_args()
    found = asyncio.run(measure(args))
    emit(
        QUESTION,
        found,
        seed=0,
        warm_up="400 items, 20 first tokens a side",
        runs=f"{args.runs} interleaved rounds",
        packages=("ray", "msgspec"),
        as_json=args.json,
    )


if __name__ == "__main__":
    main()
