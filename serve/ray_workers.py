"""What runs on the machines of a Ray cluster during an ingest: actors of Ray Data that read and cut, and that embed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from engine.bridge import LoopThread
from engine.errors import HeadraceError
from engine.graph import Graph
from engine.local import open_local
from engine.pool import Pool, Replicas
from engine.ray.transport import RayTransport
from engine.run import Running
from engine.stage import Stage
from engine.wire import decoder, encode, encode_error
from graphs.ingest import cut, embed, embedder_counters
from graphs.parts import Parts, Profile
from operators.messages import ChunkedDocument, Document, EmbeddedDocument
from operators.models.embedder import EmbedderStatistics
from operators.read import Source
from serve.ingest_job import asking, divided
from serve.ingest_reader import SeenIds, Tenancy, read_batches, without_repeats

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
R = TypeVar("R")

Row = dict[str, Any]

_EMPTY_ROW: Row = {"read": b"", "documents": b"", "refused": b"", "texts": 0, "error": b""}
"""A batch on its way, packed: what was read, without texts; its new documents in chunks, then embedded; those that were
refused; texts that the model read for it. Or the error at which the job ends."""


class Refusal(msgspec.Struct, frozen=True):
    """A document, without its text, and the packed error at which it was refused."""

    document: Document
    error: bytes


def pool_of(stage: Stage[Any], writers: Sequence[Any]) -> Pool:
    """A sharded stage whose state is in the actors of those handles."""
    return Pool(stage, [Replicas([RayTransport(stage.name, writer)]) for writer in writers])


class _Worker:
    """An actor of Ray Data: a piece of the ingest graph, whose shards are the writers elsewhere.

    An error at which the job has to end is a row, too: Ray Data would hand on its text only.

    Args:
        profile: Models and corpus.
        writers: Handles of the shards' actors.
    """

    def __init__(self, profile: Profile, writers: tuple[Any, ...]) -> None:
        self._profile = profile
        self._writers = writers
        self._loop = LoopThread()
        self._pools: dict[Stage[Any], Pool] = {}

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """The rows after this piece of the graph."""
        try:
            yield from (_table(some) for some in self._work(rows.to_pylist()))
        except HeadraceError as error:
            yield _table([{**_EMPTY_ROW, "error": encode_error(error)}])

    def _work(self, rows: list[Row]) -> Iterator[list[Row]]:
        raise NotImplementedError

    @cached_property
    def _parts(self) -> Parts:
        parts = Parts(self._profile, writable=True)
        self._pools[parts.shards] = pool_of(parts.shards, self._writers)
        return parts

    def _start(self, graph: Graph[P, R]) -> Running[P, R]:
        for stage in graph.stages:
            if stage not in self._pools:
                self._pools[stage] = self._loop.wait(open_local(stage))
        return Running(graph, self._pools)


class ReadAndCut(_Worker):
    """Sources in; a row for each batch out, with its new documents in chunks."""

    def __init__(self, profile: Profile, writers: tuple[Any, ...], tenancy: Tenancy) -> None:
        super().__init__(profile, writers)
        self._tenancy = tenancy

    @cached_property
    def _cut(self) -> Running[[list[Document]], list[ChunkedDocument]]:
        return self._start(cut(self._parts))

    def _work(self, rows: list[Row]) -> Iterator[list[Row]]:
        sources = (msgspec.msgpack.decode(row["source"], type=Source) for row in rows)
        seen = SeenIds()  # of this task; who takes the rows in looks across tasks
        for batch in (without_repeats(batch, seen) for batch in read_batches(sources, self._tenancy)):
            chunked, refused = self._loop.wait(divided(asking(self._cut), batch.documents))
            read = msgspec.structs.replace(batch, documents=[_without_text(d) for d in batch.documents])
            packed = [Refusal(_without_text(document), encode_error(error)) for document, error in refused]
            yield [{**_EMPTY_ROW, "read": encode(read), "documents": encode(chunked), "refused": encode(packed)}]


class Embed(_Worker):
    """Rows in; the same rows out, with their documents embedded and the texts that the model read counted."""

    @cached_property
    def _embed(self) -> Running[[list[ChunkedDocument]], list[EmbeddedDocument]]:
        return self._start(embed(self._parts))

    @cached_property
    def _counters(self) -> Running[[], EmbedderStatistics]:
        return self._start(embedder_counters(self._parts))

    def _work(self, rows: list[Row]) -> Iterator[list[Row]]:
        yield self._loop.wait(self._embedded(rows))

    async def _embedded(self, rows: list[Row]) -> list[Row]:
        """The rows, embedded side by side."""
        before = (await self._counters()).texts
        done = await asyncio.gather(*(self._embedded_row(row) for row in rows))
        done[0]["texts"] = (await self._counters()).texts - before
        return done

    async def _embedded_row(self, row: Row) -> Row:
        if row["error"]:
            return row
        chunked: list[ChunkedDocument] = decoder(list[ChunkedDocument]).decode(row["documents"])
        embedded, also = await divided(asking(self._embed), chunked)
        refused: list[Refusal] = decoder(list[Refusal]).decode(row["refused"])
        refused += [Refusal(_without_text(c.document), encode_error(error)) for c, error in also]
        return {**row, "documents": encode(embedded), "refused": encode(refused)}


def _without_text(document: Document) -> Document:
    return msgspec.structs.replace(document, text="", metadata={})


def _table(rows: list[Row]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - heavy

    kinds = {name: pa.int64() if isinstance(empty, int) else pa.binary() for name, empty in _EMPTY_ROW.items()}
    return pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))
