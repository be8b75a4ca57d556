"""The ingest job: files to documents, documents in batches through the ingest graph, with progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from engine.clock import MONOTONIC, Clock
from engine.errors import AccessDenied, HeadraceError, InvalidInput, QueueFull, StepFailed
from engine.run import Running, Session
from engine.scope import Priority, Scope
from graphs.ingest import commit, embedder_counters, ingest
from graphs.parts import Parts
from operators.corpus.manifest import MANIFEST, Corpus, create_corpus, open_corpus
from operators.messages import Document, Written
from operators.models.embedder_files import embedder_identity
from serve.ingest_reader import Batch, SeenIds, Tenancy, find, read_batches, without_repeats
from serve.ingest_report import IngestReport, Progress, Tally
from serve.settings import Configuration

BATCHES_IN_FLIGHT = 6  # some are cut or written while others are embedded: the embedder never waits
COMMIT_EVERY_S = 60.0

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

Write = Callable[[list[T]], Awaitable[list[Written]]]


def open_or_create(directory: Path, configuration: Configuration) -> Corpus:
    """The corpus there, or a new one for the configured embedder; Parts checks that one which exists fits it."""
    if (directory / MANIFEST).exists():
        return open_corpus(directory)
    return create_corpus(directory, configuration.corpus_config(*embedder_identity(configuration.embedder)))


def asking(running: Running[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """A running graph whose requests stand behind those of people who wait, each in a scope of its own."""

    def ask(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return running.within(Scope(priority=Priority.BATCH))(*args, **kwargs)

    return ask


async def divided(
    work: Callable[[list[T]], Awaitable[list[R]]], items: list[T]
) -> tuple[list[R], list[tuple[T, HeadraceError]]]:
    """Results of `work` on a batch, and the items that it refuses.

    A batch that is refused is halved until those at fault are alone; so `work` may be called with an item again, and
    whatever ends a process or fills a disk is raised.
    """
    if not items:
        return [], []
    try:
        return await _admitted(work, items), []
    except (InvalidInput, AccessDenied, StepFailed) as error:
        if len(items) == 1:
            return [], [(items[0], error)]
    half = len(items) // 2
    (first, refused), (second, also) = await divided(work, items[:half]), await divided(work, items[half:])
    return first + second, refused + also


async def _admitted(work: Callable[[list[T]], Awaitable[list[R]]], items: list[T]) -> list[R]:
    """Result of `work`, as soon as there is room: a document of 64 MiB fills the embedder's queue."""
    while True:
        try:
            return await work(items)
        except QueueFull as full:
            await asyncio.sleep(full.retry_after_s)


class IngestJob:
    """One run of the ingest command on this machine; run it again to carry on where it ended, however that was.

    What was written is on the disk, and a second run finds it unchanged; what a killed run had embedded and not written
    yet, `BATCHES_IN_FLIGHT` batches of some 100 chunks, is embedded again. The indexes are saved every minute, so a
    second run has no more than that to let them follow.

    A file or document that cannot be ingested is a row in the report. What ends the job: a full or broken disk, the
    death of a stage's process, and `FAILURES_IN_A_ROW` documents one after the other at which a step fails.

    Memory, beside models and indexes (a dense index takes four bytes a dimension and about 200 more a chunk): no more
    than `BATCHES_IN_FLIGHT` + 1 batches of 64,000 characters or one larger document, several times over (text, chunks,
    frames between processes); half a KiB for each file found; 100 bytes for each document.

    Args:
        paths: Files and folders.
        directory: The corpus, made when it does not exist and there is something to ingest.
        configuration: Models and settings.
        tenancy: Owner and collections of what is ingested.
        tell: Called with the progress after every batch.
        clock: Source of time.
        commit_every_s: How often the indexes are saved.

    Raises:
        InvalidInput: A path does not exist, or a folder holds nothing to read.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        directory: Path,
        configuration: Configuration,
        *,
        tenancy: Tenancy | None = None,
        tell: Callable[[Progress], None] = lambda _: None,
        clock: Clock = MONOTONIC,
        commit_every_s: float = COMMIT_EVERY_S,
    ) -> None:
        self._found = find(paths)
        self._directory = directory
        self._configuration = configuration
        self._tenancy = tenancy or Tenancy()
        self._tell = tell
        self._clock = clock
        self._commit_every_s = commit_every_s
        self._tally = Tally(self._found, clock)

    async def run(self) -> IngestReport:
        """Ingest everything.

        Raises:
            InvalidInput: Another process writes to the corpus, or it was made with another embedder.
            HeadraceError: The job cannot go on; see the class. What was told as ingested is.
        """
        parts = self._parts()
        session = Session()
        try:
            write = await session.start(ingest(parts))
            save, counters = await session.start(commit(parts)), await session.start(embedder_counters(parts))
            self._tally.opened()
            await self._pass(_from_thread(self._batches()), partial(self._ingest, asking(write)), save)
            await save()
            embedded = (await counters()).texts
        finally:
            await session.aclose()
        return self._tally.report(str(self._directory), embedded=embedded)

    def _parts(self) -> Parts:
        corpus = open_or_create(self._directory.absolute(), self._configuration)  # others may be elsewhere
        return Parts(self._configuration.profile(corpus), writable=True)

    async def _pass(
        self,
        arriving: AsyncGenerator[T, None],
        ingest: Callable[[T], Coroutine[Any, Any, None]],
        save: Callable[[], Awaitable[None]],
    ) -> None:
        """Ingest what arrives, several at once."""
        flying: set[asyncio.Task[None]] = set()
        saved = self._clock.now()
        try:
            async with aclosing(arriving):
                async for one in arriving:
                    flying.add(asyncio.create_task(ingest(one)))
                    flying = await _landed(flying, leave=BATCHES_IN_FLIGHT - 1)
                    if self._clock.now() - saved >= self._commit_every_s:
                        await save()
                        saved = self._clock.now()
            await _landed(flying, leave=0)
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    def _batches(self) -> Iterator[Batch]:
        seen = SeenIds()
        return (without_repeats(batch, seen) for batch in read_batches(self._found.sources, self._tenancy))

    async def _ingest(self, write: Write[Document], batch: Batch) -> None:
        written, refused = await divided(write, batch.documents)
        self._tally.add(batch, written, refused)
        self._tell(self._tally.progress())


async def _from_thread(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """The items, each made in a thread when it is asked for."""
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item


async def _landed(flying: set[asyncio.Task[None]], *, leave: int) -> set[asyncio.Task[None]]:
    """Those that are still under way, when no more than `leave` are.

    Raises:
        Exception: Whatever one of them raised.
    """
    while len(flying) > leave:
        done, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    return flying
