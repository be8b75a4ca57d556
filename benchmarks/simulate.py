"""How far off is `headrace simulate`, where the truth can be measured?

A graph of stub operators (a sharded search, then a model that takes one call at a time), run by the local engine under
random arrivals, and simulated with the times of calls that were made one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator

from benchmarks.report import Figure, emit, percentile
from engine.graph import graph
from engine.run import Running, start
from engine.scope import Scope
from engine.simulate import Place, Times, simulate, times_of
from engine.stage import Stage
from engine.step import step
from engine.trace import Trace

QUESTION = __doc__.splitlines()[0]
SHARDS = 8
LOADS = (0.3, 0.6, 0.8)  # of what the model can do


class Slow:
    """Sleeps for a random time; so many calls at once.

    Args:
        mean_s: Of the times, which are exponential but for a constant half.
        slots: Calls at once.
    """

    def __init__(self, mean_s: float, slots: int) -> None:
        self._mean_s = mean_s
        self._slots = asyncio.Semaphore(slots)
        self._random = random.Random(0)

    async def work(self, n: int) -> int:
        """Takes its time."""
        async with self._slots:
            await asyncio.sleep(self._mean_s / 2 + self._random.expovariate(2 / self._mean_s))
            return n


def open_shard(_: int) -> Slow:
    """A shard: 4 ms, many at once."""
    return Slow(0.004, 1000)


def open_model() -> Slow:
    """A model: 20 ms, one at a time."""
    return Slow(0.020, 1)


shards, model = Stage("shard", open_shard, shards=SHARDS), Stage("model", open_model)
find, answer = shards.gather(Slow.work, sum, name="find"), model.step(Slow.work, name="answer")


@step
def plan(n: int) -> int:
    """A light step."""
    return n


@graph
def asked(n: int) -> int:
    """Plan, search every shard, ask the model."""
    return answer(find(plan(n)))


async def measured(running: Running[[int], int], rate: float, requests: int, seed: int) -> list[float]:
    """Seconds of each request under random arrivals."""
    chance, took = random.Random(seed), []

    async def one() -> None:
        began = time.perf_counter()
        await running(1)
        took.append(time.perf_counter() - began)

    tasks = []
    for _ in range(requests):
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(chance.expovariate(rate))
    await asyncio.gather(*tasks)
    return took[requests // 10 :]


async def times(running: Running[[int], int], requests: int) -> dict[str, Times]:
    """Of calls one after another. A gathered step's trace tells its slowest shard, so a shard is asked by itself."""
    spans = []
    for _ in range(requests):
        scope = Scope(trace=Trace())
        await running.within(scope)(1)
        if scope.trace is not None:
            spans.append(scope.trace.spans)
    alone, served = open_shard(0), []
    for _ in range(requests):
        began = time.perf_counter()
        await alone.work(1)
        served.append(time.perf_counter() - began)
    return times_of(spans) | {"find": Times(tuple(served))}


async def figures(requests: int, seed: int) -> list[Figure]:
    """The errors, load by load."""
    found: list[Figure] = []
    async with start(asked) as running:
        known = await times(running, 300)
        capacity = len(known["answer"].served) / sum(known["answer"].served)
        for load in LOADS:
            truth = await measured(running, load * capacity, requests, seed)
            told = simulate(asked, known, {"shard": Place(shards=SHARDS, slots=1000)}, rate=load * capacity,
                            requests=20 * requests, seed=seed)  # fmt: skip
            found += compared(load, truth, {50: told.p50_s, 99: told.p99_s})
    return found


def compared(load: float, truth: list[float], told: dict[int, float]) -> Iterator[Figure]:
    """What was measured, and how far off the forecast is."""
    for percent, seconds in told.items():
        real = percentile(truth, percent)
        yield Figure.over_runs(f"load {load:.0%}, p{percent}: measured", [real * 1e3], "ms")
        yield Figure.over_runs(f"load {load:.0%}, p{percent}: forecast over measured", [seconds / real], "times")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--requests", type=int, default=1500, help="a load")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    found = asyncio.run(figures(args.requests, args.seed))
    emit(
        QUESTION,
        found,
        seed=args.seed,
        warm_up="a tenth of each load",
        runs=f"one, {args.requests} requests a load; the forecasts simulate twenty times as many",
        as_json=args.json,
        packages=(),
        notes=["a light step's and the engine's own time are in the hops"],
    )


if __name__ == "__main__":
    main()
