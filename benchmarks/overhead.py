"""What does a graph of seven steps cost when its steps do nothing?

Plain asyncio, headrace (local engine, tracing on), Haystack's Pipeline and LangGraph run the same seven steps in one
process, one at a time and 16 in flight, in interleaved rounds; then the same graph with three remote stages on Ray
actors against three bare awaited actor calls one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import Any

from benchmarks import noop
from benchmarks.report import Figure, emit, percentile
from engine.run import start

QUESTION = __doc__.splitlines()[0]
IN_FLIGHT = 16
PACKAGES = ("ray", "haystack-ai", "langgraph", "msgspec")


async def one_at_a_time(ask: noop.Ask, n: int) -> list[float]:
    """Seconds of each of `n` questions."""
    took = []
    for _ in range(n):
        began = time.perf_counter()
        await ask("why")
        took.append(time.perf_counter() - began)
    return took


async def in_flight(ask: noop.Ask, n: int) -> float:
    """Questions a second with 16 in flight."""

    async def caller() -> None:
        for _ in range(max(1, n // IN_FLIGHT)):
            await ask("why")

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return max(1, n // IN_FLIGHT) * IN_FLIGHT / (time.perf_counter() - began)


async def rounds(systems: Mapping[str, tuple[noop.Ask, int]], runs: int) -> dict[str, dict[str, list[float]]]:
    """Interleaved rounds; each gives a p50 in microseconds and a rate for each system."""
    seen: dict[str, dict[str, list[float]]] = {name: {"p50": [], "rate": []} for name in systems}
    for ask, n in systems.values():
        await one_at_a_time(ask, n // 4)  # warm-up
    for _ in range(runs):
        for name, (ask, n) in systems.items():
            seen[name]["p50"].append(percentile(await one_at_a_time(ask, n), 50) * 1e6)
            seen[name]["rate"].append(await in_flight(ask, n))
    return seen


def figures(seen: dict[str, dict[str, list[float]]]) -> list[Figure]:
    """Medians over the rounds, and the differences and ratios that the issue asks for, round by round."""
    out = []
    for name, s in seen.items():
        out.append(Figure.over_runs(f"{name} p50", s["p50"], "us"))
        out.append(Figure.over_runs(f"{name} at 16 in flight", s["rate"], "questions/s", lower_is_better=False))
    ours, plain, haystack = seen["headrace local"], seen["plain asyncio"], seen["haystack"]
    above = [a - b for a, b in zip(ours["p50"], plain["p50"], strict=True)]
    times = [a / b for a, b in zip(ours["rate"], haystack["rate"], strict=True)]
    out.append(Figure.over_runs("headrace above plain asyncio, p50", above, "us"))
    out.append(Figure.over_runs("headrace / haystack at 16 in flight", times, "ratio", lower_is_better=False))
    return out


async def on_ray(runs: int, n: int) -> list[Figure]:
    """Three remote stages in a graph against three bare awaited actor calls, interleaved."""
    import ray

    from engine.ray.cluster import ensure_ray

    ensure_ray()

    @ray.remote(num_cpus=0.1, max_concurrency=1000)
    class Bare:
        async def handle(self, value: str) -> str:
            return value

    actors: list[Any] = [Bare.remote() for _ in range(3)]

    async def bare(question: str) -> str:
        value = question
        for actor in actors:
            value = await actor.handle.remote(value)
        return value

    async with start(noop.three_remote(), engine="ray") as three, start(noop.seven_steps(), engine="ray") as seven:
        systems = {"bare": (bare, n), "three": (noop.traced(three), n), "seven": (noop.traced(seven), n)}
        seen = await rounds(systems, runs)
    ratios = [a / b for a, b in zip(seen["three"]["p50"], seen["bare"]["p50"], strict=True)]
    rates = [a / b for a, b in zip(seen["three"]["rate"], seen["bare"]["rate"], strict=True)]
    return [
        Figure.over_runs("three bare awaited actor calls, p50", seen["bare"]["p50"], "us"),
        Figure.over_runs("headrace on Ray, three remote stages, p50", seen["three"]["p50"], "us"),
        Figure.over_runs(
            "headrace on Ray, five calls to three actors (legs in parallel), p50", seen["seven"]["p50"], "us"
        ),
        Figure.over_runs("headrace on Ray / bare calls, p50", ratios, "ratio"),
        Figure.over_runs("headrace on Ray / bare calls, rate at 16 in flight", rates, "ratio", lower_is_better=False),
    ]


async def measure(args: argparse.Namespace) -> list[Figure]:
    """All figures."""
    n = args.questions
    async with start(noop.seven_steps()) as running:
        systems = {
            "plain asyncio": (noop.plain_asyncio(), n),
            "headrace local": (noop.traced(running), n),
            "haystack": (noop.haystack_pipeline(), n // 10),
            "langgraph": (noop.langgraph_graph(), n // 20),
        }
        local = figures(await rounds(systems, args.runs))
    return local if args.local_only else local + await on_ray(args.runs, n // 10)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--questions", type=int, default=2000, help="per round; the slow peers run fewer")
    parser.add_argument("--local-only", action="store_true", help="leave Ray out")
    args = parser.parse_args()
    emit(
        QUESTION,
        asyncio.run(measure(args)),
        seed=0,
        warm_up=f"{args.questions // 4} questions",
        runs=f"{args.runs} interleaved rounds",
        as_json=args.json,
        packages=PACKAGES,
    )


if __name__ == "__main__":
    main()
