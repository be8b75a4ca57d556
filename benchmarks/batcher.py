"""Does forming a batch when the worker is free keep p99 at or below the best timer of ray.serve.batch, at any load?

Both sides run in one process, one event loop and one worker thread that sleeps 50 ms per batch of at most 32, so the
fluid limit is 640 requests/s. Arrivals are Poisson and open-loop: they come when they come, the same ones for each
side, and latency counts from when a request was due, so a stalled side cannot hide behind a stalled client.

ray.serve.batch is given its best: a replica context without limits, no HTTP or handle in front,
max_concurrent_batches=1 (there is one worker; more would only queue batches in its pool), and the timer that suits each
load best, found by trying them all and then racing the three best of them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from benchmarks.report import Figure, emit, percentile
from engine.batcher import Batcher, BatchLimits

QUESTION = "Is p99 with batches formed when the worker is free never worse than with ray.serve.batch at its best timer?"
BATCH_S, LIMIT = 0.050, 32
LOADS = (0.2, 0.6, 0.9)
TIMERS_MS = (2, 5, 10, 20, 30, 40, 45, 50, 55, 60, 75, 100)
DEFAULT_TIMER_MS = 10
DRAIN_S = 2.0  # a request still unanswered so long after the last arrival counts with its age: a lower bound

Call = Callable[[int], Awaitable[int]]
Side = Callable[[list[int]], AbstractAsyncContextManager[Call]]  # appends the size of every batch to the list


@dataclass(frozen=True)
class Run:
    """What one side did with one sequence of arrivals."""

    p50_ms: float
    p99_ms: float
    mean_batch: float
    unanswered: int


@asynccontextmanager
async def ours(batches: list[int]):
    def execute(items: list[int]) -> list[int]:
        batches.append(len(items))
        time.sleep(BATCH_S)
        return items

    batcher = Batcher(execute, limits=BatchLimits(max_cost=LIMIT))

    async def call(number: int) -> int:
        return (await batcher.submit([number]))[0]

    yield call
    await batcher.aclose()


def serve_batch(timer_ms: float) -> Side:
    """`@serve.batch` with that timer, on a plain function in the current event loop."""

    @asynccontextmanager
    async def side(batches: list[int]):
        from ray import serve as ray_serve

        worker = ThreadPoolExecutor(1)

        @ray_serve.batch(max_batch_size=LIMIT, batch_wait_timeout_s=timer_ms / 1000, max_concurrent_batches=1)
        async def call(numbers: list[int]) -> list[int]:
            batches.append(len(numbers))
            await asyncio.get_running_loop().run_in_executor(worker, time.sleep, BATCH_S)
            return numbers

        yield call
        worker.shutdown(cancel_futures=True)

    return side


def enter_replica() -> None:
    """Let `@serve.batch` believe that it runs in a replica that admits everything: all that it asks of Serve."""
    from ray.serve._private.common import DeploymentID, ReplicaID
    from ray.serve._private.config import DeploymentConfig
    from ray.serve.context import _set_internal_replica_context

    _set_internal_replica_context(
        replica_id=ReplicaID("benchmark", DeploymentID("batcher")),
        servable_object=lambda: None,
        _deployment_config=DeploymentConfig(max_ongoing_requests=1_000_000),
        rank=None,
        world_size=1,
    )
    for name in ("asyncio", "ray.serve"):  # its tasks protest when a run's event loop ends
        logging.getLogger(name).setLevel(logging.CRITICAL)


def arrivals(rate_hz: float, seconds: float, seed: int) -> Iterator[float]:
    """Moments of a Poisson process, in seconds from its start."""
    source = random.Random(seed)
    moment = source.expovariate(rate_hz)
    while moment < seconds:
        yield moment
        moment += source.expovariate(rate_hz)


async def offer(side: Side, rate_hz: float, seconds: float, seed: int) -> Run:
    batches: list[int] = []
    latencies_s: list[float] = []
    began = time.perf_counter() + 0.01

    async def ask(call: Call, number: int, due: float) -> None:
        try:
            await call(number)
        finally:
            latencies_s.append(time.perf_counter() - due)

    async with side(batches) as call:
        asked = []
        for number, moment in enumerate(arrivals(rate_hz, seconds, seed)):
            await asyncio.sleep(began + moment - time.perf_counter())
            asked.append(asyncio.create_task(ask(call, number, began + moment)))
        _, late = await asyncio.wait(asked, timeout=DRAIN_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
    latencies_ms = [1000 * latency for latency in latencies_s]
    return Run(percentile(latencies_ms, 50), percentile(latencies_ms, 99), statistics.fmean(batches), len(late))


def measure(side: Side, load: float, seconds: float, seed: int) -> Run:
    """One run in an event loop of its own, so that nothing of another run is left."""
    return asyncio.run(offer(side, load * LIMIT / BATCH_S, seconds, seed))


def finalists(load: float, seconds: float, seed: int) -> list[int]:
    """The three timers with the lowest p99 when each is tried once."""
    tried = {timer: measure(serve_batch(timer), load, seconds, seed).p99_ms for timer in TIMERS_MS}
    return sorted(tried, key=tried.__getitem__)[:3]


def race(load: float, *, runs: int, seconds: float, seed: int) -> tuple[list[Figure], list[str]]:
    """Ours, serve.batch at its best timers and at the default one, in turn, on the same arrivals in each round."""
    timers = finalists(load, seconds / 2, seed)
    sides = {"ours": ours, **{f"{timer} ms": serve_batch(timer) for timer in (*timers, DEFAULT_TIMER_MS)}}
    results: dict[str, list[Run]] = {name: [] for name in sides}
    for number in range(runs):
        for name, side in sides.items():
            results[name].append(measure(side, load, seconds, seed + 1 + number))
    best = min(timers, key=lambda timer: statistics.median(run.p99_ms for run in results[f"{timer} ms"]))
    named = {
        "ours": results["ours"],
        "serve.batch best timer": results[f"{best} ms"],
        "serve.batch default timer": results[f"{DEFAULT_TIMER_MS} ms"],
    }
    at = f"at {load:.0%} load"
    figures = [figure for name, rows in named.items() for figure in of_side(f"{name} {at}", rows)]
    ratios = [a.p99_ms / b.p99_ms for a, b in zip(named["ours"], named["serve.batch best timer"], strict=True)]
    figures += [
        Figure(f"best timer {at}", best, "ms", lower_is_better=True, spread=(min(timers), max(timers))),
        Figure.over_runs(f"p99 ours / best timer {at}", ratios, "ratio"),
    ]
    unanswered = {name: sum(run.unanswered for run in rows) for name, rows in named.items()}
    lost = [
        f"{name} {at}: {n} requests still unanswered after the drain, counted with their age"
        for name, n in unanswered.items()
        if n
    ]
    return figures, lost


def of_side(name: str, rows: list[Run]) -> list[Figure]:
    return [
        Figure.over_runs(f"{name}: p50", [row.p50_ms for row in rows], "ms"),
        Figure.over_runs(f"{name}: p99", [row.p99_ms for row in rows], "ms"),
        Figure.over_runs(f"{name}: mean batch", [row.mean_batch for row in rows], "requests", lower_is_better=False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each side at each load")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a run")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()

    enter_replica()
    for side in (ours, serve_batch(50)):
        measure(side, 0.6, 1.0, options.seed)
    figures: list[Figure] = []
    notes = ["serve.batch: max_batch_size=32, max_concurrent_batches=1 since there is one worker, no Serve in front"]
    for load in LOADS:
        of_load, lost = race(load, runs=options.runs, seconds=options.seconds, seed=options.seed)
        figures += of_load
        notes += lost
    emit(
        QUESTION,
        figures,
        seed=options.seed,
        warm_up="one run of 1 s a side, discarded; each timer tried once at each load before the race",
        runs=f"{options.runs} of {options.seconds:g} s a side and load, interleaved; value = median, spread = min, max",
        as_json=options.json,
        packages=["ray"],
        notes=notes,
    )


if __name__ == "__main__":
    main()
