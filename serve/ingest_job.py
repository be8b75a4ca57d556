"""The ingest job: files to documents, documents in batches through the ingest graph, with progress."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from engine.run import EngineName, Running, Session
from engine.scope import Priority, Scope
from graphs.ingest import commit, ingest
from graphs.parts import Parts
from operators.corpus.manifest import MANIFEST, Corpus, create_corpus, open_corpus
from operators.messages import Document, Skipped, Written
from operators.models.embedder_files import embedder_identity
from operators.read import Source, find_sources, read_documents
from serve.settings import Configuration

BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 200_000
BATCHES_IN_FLIGHT = 3  # one is read and cut, one embedded, one written


class IngestReport(msgspec.Struct, frozen=True):
    """What an ingest did."""

    corpus: str
    added: int
    replaced: int
    unchanged: int
    chunks: int
    skipped: tuple[Skipped, ...]
    seconds: float


class Progress(msgspec.Struct, frozen=True):
    """How far an ingest is."""

    documents: int
    sources_read: int
    sources: int
    documents_per_s: float


def open_or_create(directory: Path, configuration: Configuration) -> Corpus:
    """The corpus there, or a new one for the configured embedder; Parts checks that one which exists fits it."""
    if (directory / MANIFEST).exists():
        return open_corpus(directory)
    return create_corpus(directory, configuration.corpus_config(*embedder_identity(configuration.embedder)))


class IngestJob:
    """One run of the ingest command.

    Args:
        paths: Files and folders.
        directory: The corpus, made when it does not exist and there is something to ingest.
        configuration: Models and settings.
        tell: Called with the progress after every batch.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        directory: Path,
        configuration: Configuration,
        *,
        tell: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._found = list(find_sources(paths))
        self._sources = [s for s in self._found if isinstance(s, Source)]
        self._skipped = [s for s in self._found if isinstance(s, Skipped)]
        self._directory = directory
        self._configuration = configuration
        self._tell = tell
        self._outcomes: Counter[str] = Counter()
        self._chunks = self._read = 0
        self._began = time.monotonic()

    async def run(self, engine: EngineName = "local") -> IngestReport:
        """Ingest everything; one bad file never ends the job.

        Raises:
            InvalidInput: Another process writes to the corpus, or it was made with another embedder.
        """
        corpus = open_or_create(self._directory, self._configuration)
        parts = Parts(self._configuration.profile(corpus), writable=True)
        session = Session(engine)
        try:
            running = await session.start(ingest(parts))
            await self._pass(running)
            await (await session.start(commit(parts)))()
        finally:
            await session.aclose()
        return self._report()

    async def _pass(self, running: Running[[list[Document]], list[Written]]) -> None:
        flying: set[asyncio.Task[None]] = set()
        try:
            async for batch in self._batches():
                flying.add(asyncio.create_task(self._ingest(running, batch)))
                if len(flying) >= BATCHES_IN_FLIGHT:
                    done, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            for ended in asyncio.as_completed(flying):
                await ended
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    async def _ingest(self, running: Running[[list[Document]], list[Written]], batch: list[Document]) -> None:
        written = await running.within(Scope(priority=Priority.BATCH))(batch)
        self._outcomes.update(w.outcome for w in written)
        self._chunks += sum(w.chunks for w in written)
        documents = self._outcomes.total()
        rate = documents / max(1e-9, time.monotonic() - self._began)
        self._tell(Progress(documents, self._read, len(self._sources), rate))

    async def _batches(self) -> AsyncIterator[list[Document]]:
        """Documents in batches of bounded size; of a document that comes twice in one run the first is taken."""
        batch: list[Document] = []
        size = 0
        documents = self._documents()
        while (document := await asyncio.to_thread(next, documents, None)) is not None:
            batch.append(document)
            size += len(document.text)
            if len(batch) >= BATCH_DOCUMENTS or size >= BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _documents(self) -> Iterator[Document]:
        seen: dict[str, str] = {}
        for source in self._sources:
            for read in read_documents(source):
                if isinstance(read, Skipped):
                    self._skipped.append(read)
                elif read.id in seen:
                    reason = f"its id {read.id!r} is taken by {seen[read.id]}; give the two different names"
                    self._skipped.append(Skipped(read.source, reason))
                else:
                    seen[read.id] = read.source
                    yield read
            self._read += 1

    def _report(self) -> IngestReport:
        return IngestReport(
            corpus=str(self._directory),
            added=self._outcomes["added"],
            replaced=self._outcomes["replaced"],
            unchanged=self._outcomes["unchanged"],
            chunks=self._chunks,
            skipped=tuple(self._skipped),
            seconds=time.monotonic() - self._began,
        )
