"""The stores that `benchmarks.search` compares, each in a process of its own, so that none shares threads or memory."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import Collection
from engine.run import Session
from engine.step import step
from graphs.parts import Parts, Profile
from graphs.search import search
from operators.corpus.manifest import CorpusConfig, IndexConfig, create_corpus, open_corpus
from operators.corpus.shard import Shard
from operators.feedback import FeedbackConfig
from operators.fuse import Fusion
from operators.messages import Plan, Question, Settings
from operators.plan_question import plan_question
from operators.select import cut_to_limit

Ask = Callable[[str, np.ndarray], list[str]] | Callable[[str, np.ndarray], Awaitable[list[str]]]
Extra = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Bench:
    """What every side is given: the same chunks, the same questions, and a folder for its files."""

    folder: Path
    collection: Collection
    count: int

    @cached_property
    def questions(self) -> tuple[list[str], np.ndarray]:
        """Texts and vectors float32[Q, D]."""
        return self.collection.questions(self.count)


Side = Callable[[Bench], AbstractAsyncContextManager[Mapping[str, Ask]]]  # a side's ways of asking, by name


async def filled(folder: Path, collection: Collection, config: IndexConfig) -> Shard:
    """A corpus of one shard with all documents of the collection, written through it and committed."""
    settings = {name: getattr(config, name) for name in config.__struct_fields__}
    corpus = create_corpus(folder, CorpusConfig(embedder="given", dimension=collection.dimension, **settings))
    shard = Shard.open(str(corpus.directory), 0, writable=True)
    for block in collection.blocks():
        await shard.write(block, "given")
    await shard.commit()
    return shard


class InProcess:
    """Plan, both legs at once, fusion and fetch on a shard that is open in this process."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._fuse = Fusion()

    async def ask(self, question: str, vector: np.ndarray, settings: Settings | None = None) -> list[str]:
        """The texts of the ten best."""
        plan = plan_question(Question(question, settings or Settings()))
        lexical, dense = await asyncio.gather(self.shard.lexical(plan, None), self.shard.dense(plan, vector))
        passages = await self.shard.fetch(plan, vector, cut_to_limit(plan, self._fuse(plan, dense, lexical)))
        return [passage.text for passage in passages]


@asynccontextmanager
async def ours(bench: Bench) -> AsyncIterator[Mapping[str, Ask]]:
    """The shard in one process; it writes the corpus that the graphs read."""
    shard = await filled(bench.folder / "corpus", bench.collection, IndexConfig())
    yield {"headrace": InProcess(shard).ask}
    await shard.aclose()


class _GivenVectors(Parts):
    """The graph's parts with the questions' vectors looked up instead of computed."""

    def __init__(self, profile: Profile, vectors: Mapping[str, np.ndarray]) -> None:
        super().__init__(profile)

        def embed(plan: Plan) -> np.ndarray:
            return vectors[plan.question]

        self._embed = step(embed)


@asynccontextmanager
async def graphs(bench: Bench) -> AsyncIterator[Mapping[str, Ask]]:
    """The search graph as it is run, over the corpus that `ours` has written, its shard in a child process."""
    vectors = dict(zip(*bench.questions, strict=True))
    corpus, session, stage = open_corpus(bench.folder / "corpus"), Session(), None
    ways: dict[str, Ask] = {}
    for name, feedback in (("headrace graph", FeedbackConfig(passages=0)), ("headrace graph, feedback", None)):
        parts = _GivenVectors(Profile(corpus, feedback=feedback or FeedbackConfig()), vectors)
        parts.shards = stage = stage or parts.shards
        running = await session.start(search(parts))

        async def ask(question: str, _: np.ndarray, running: Any = running) -> list[str]:
            return [passage.text for passage in (await running(Question(question))).passages]

        ways[name] = ask
    yield ways
    await session.aclose()


@asynccontextmanager
async def floor(bench: Bench) -> AsyncIterator[Mapping[str, Ask]]:
    """Bare libraries."""
    from benchmarks.floor import Floor

    bare = Floor(bench.folder / "floor", bench.collection, IndexConfig())
    yield {"floor": bare.at_once, "floor, leg after leg": bare.one_after_another}


@asynccontextmanager
async def lancedb(bench: Bench) -> AsyncIterator[Mapping[str, Ask]]:
    """LanceDB."""
    os.environ["RUST_LOG"] = os.environ["LANCEDB_LOG"] = "error"  # or it logs a warning, at a cost, for each question
    from benchmarks.peers import LanceDB

    yield {"LanceDB": LanceDB(bench.folder / "lancedb", bench.collection).ask}


@asynccontextmanager
async def txtai(bench: Bench) -> AsyncIterator[Mapping[str, Ask]]:
    """The peer txtai."""
    from benchmarks.peers import Txtai

    yield {"txtai": Txtai(bench.collection, *bench.questions).ask}


async def timed(ask: Ask, bench: Bench, clients: int) -> tuple[list[float], float]:
    """Seconds of each question, and of all of them, with so many clients who each ask the next one."""
    texts, vectors = bench.questions
    numbers, took = iter(range(len(texts))), []

    async def task() -> None:
        for number in numbers:
            began = time.perf_counter()
            await ask(texts[number], vectors[number])  # type: ignore[misc] # asynchronous here
            took.append(time.perf_counter() - began)

    def thread() -> None:
        for number in numbers:
            began = time.perf_counter()
            ask(texts[number], vectors[number])
            took.append(time.perf_counter() - began)

    asynchronous = inspect.iscoroutinefunction(ask)
    with ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        if asynchronous:
            await asyncio.gather(*(task() for _ in range(clients)))
        elif clients == 1:
            thread()
        else:
            for done in [pool.submit(thread) for _ in range(clients)]:
                done.result()
        return took, time.perf_counter() - began


async def answers(ask: Ask, bench: Bench) -> list[list[str]]:
    """The texts that each question finds."""
    found = [ask(text, vector) for text, vector in zip(*bench.questions, strict=True)]
    return [texts if isinstance(texts, list) else await texts for texts in found]


class SideProcess:
    """A side at work in a child process; `ways` are the names of its ways of asking."""

    def __init__(self, side: Side, bench: Bench) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, side, bench), daemon=False)
        self._process.start()
        theirs.close()
        self.ways: list[str] = self._connection.recv()

    def timed(self, way: str, clients: int) -> tuple[list[float], float]:
        """See the function `timed`."""
        return self._ask(timed, way, clients)

    def answers(self, way: str) -> list[list[str]]:
        """See the function `answers`."""
        return self._ask(answers, way)

    def _ask(self, function: Extra, *arguments: Any) -> Any:
        self._connection.send((function, arguments))
        return self._connection.recv()

    def close(self) -> None:
        """Ends the process, which sees that nobody will ask any more."""
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, side: Side, bench: Bench) -> None:
    async def run() -> None:
        async with side(bench) as ways:
            connection.send(list(ways))
            with suppress(EOFError):
                while True:
                    function, (way, *arguments) = await asyncio.to_thread(connection.recv)
                    connection.send(await function(ways[way], bench, *arguments))

    asyncio.run(run())
