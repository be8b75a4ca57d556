"""What runs on the machines of a Ray cluster during an ingest: a dataset whose actors read and cut, and embed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from engine.bridge import LoopThread
from engine.graph import Graph
from engine.local import open_local
from engine.pool import Pool
from engine.ray.transport import RayTransport
from engine.replicas import Replicas
from engine.run import Running
from engine.stage import Stage
from engine.supervise import as_step_failure
from engine.wire import decoder, encode, encode_error
from graphs.ingest import cut, embed, embedder_counters
from graphs.parts import Parts, Profile
from operators.messages import ChunkedDocument, Document
from operators.read import Source
from serve.ingest_job import asking, divided
from serve.ingest_reader import SeenIds, Tenancy, read_batches, without_repeats

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
R = TypeVar("R")

Row = dict[str, Any]

_EMPTY_ROW: Row = {"number": 0, "read": b"", "documents": b"", "refused": b"", "texts": 0, "error": b""}
"""A batch on its way, packed: its number in its task; what was read, without texts; its new documents in chunks, then
embedded; those that were refused; texts that the model read for it. Or the error at which the job ends."""

_SOURCES_READ_TOGETHER = 256
_ROWS_EMBEDDED_TOGETHER = 4
READER_CPUS, EMBEDDER_CPUS = 0.5, 1.0


class Refusal(msgspec.Struct, frozen=True):
    """A document, without its text, and the packed error at which it was refused."""

    document: Document
    error: bytes


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How many actors read, how many embed, and the GPUs of one that embeds."""

    readers: int
    embedders: int
    gpus: float


def pool_of(stage: Stage[Any], writers: Sequence[Any]) -> Pool:
    """A sharded stage whose state is in the actors of those handles."""
    return Pool(stage, [Replicas([RayTransport(stage.name, writer)]) for writer in writers])


class Dataset:
    """The dataset of an ingest, in an actor of its own.

    So Ray Data's words go to that actor's log and not to the terminal, and to kill the actor is to end whatever Ray
    Data is waiting for: its iterators block, and cannot be cancelled.

    Args:
        sources: What is read.
        tenancy: Whose it is.
        sizes: Of the pools of actors.
    """

    def __init__(self, sources: list[Source], tenancy: Tenancy, *, sizes: Sizes) -> None:
        import ray.data  # noqa: PLC0415 - seconds; this actor alone needs it

        self._from_items = ray.data.from_items
        self._strategy = ray.data.ActorPoolStrategy
        self._sources = sources
        self._tenancy = tenancy
        self._sizes = sizes

    def rows(self, profile: Profile, writers: tuple[Any, ...]) -> Iterator[list[Row]]:
        """The rows of all sources, in their order, as they come.

        Args:
            profile: Models and corpus.
            writers: Handles of the shards' actors.
        """
        sources, sizes = self._sources, self._sizes
        if not sources:
            return
        tasks = -(-len(sources) // _SOURCES_READ_TOGETHER)
        items = [{"source": msgspec.msgpack.encode(source)} for source in sources]
        dataset = (
            self._from_items(items, override_num_blocks=tasks)
            .map_batches(
                ReadAndCut,
                fn_constructor_args=(profile, writers, self._tenancy),
                batch_size=None,
                batch_format="pyarrow",
                compute=self._strategy(min_size=1, max_size=sizes.readers),
                num_cpus=READER_CPUS,
            )
            .map_batches(
                Embed,
                fn_constructor_args=(profile, writers),
                batch_size=_ROWS_EMBEDDED_TOGETHER,
                batch_format="pyarrow",
                compute=self._strategy(min_size=1, max_size=sizes.embedders),
                num_cpus=EMBEDDER_CPUS,
                num_gpus=sizes.gpus,
            )
        )
        context = dataset.context
        # A block is a row. When an actor dies, Ray runs its task again and leaves out as many blocks as had come
        # before. So the n-th block has to be the n-th batch again, though by now fewer of its documents are new: with
        # blocks of 1 MiB, three deaths of a reader lost 90 of 240 documents.
        context.target_max_block_size = 1
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield table.to_pylist()


class _Worker:
    """An actor of Ray Data: a piece of the ingest graph, whose shards are the writers elsewhere.

    Models are loaded while Ray Data still starts other actors. An error at which the job has to end is a row, too: Ray
    Data would hand on its text only.

    Args:
        profile: Models and corpus.
        writers: Handles of the shards' actors.
    """

    _step: str  # for errors

    def __init__(self, profile: Profile, writers: tuple[Any, ...]) -> None:
        self._profile = profile
        self._writers = writers
        self._loop = LoopThread()
        self._opening = ThreadPoolExecutor(1).submit(self._open)

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """The rows after this piece of the graph."""
        try:
            self._opening.result()
            yield from map(_table, self._work(rows.to_pylist()))
        except Exception as error:  # noqa: BLE001 - the supervisor boundary: raised again where rows arrive
            failure = as_step_failure(error, self._step, None)
            yield _table([_EMPTY_ROW | {"error": encode_error(failure)}])

    def _open(self) -> None:
        raise NotImplementedError

    def _work(self, rows: list[Row]) -> Iterator[list[Row]]:
        raise NotImplementedError

    def _starter(self) -> tuple[Parts, Callable[[Graph[P, R]], Running[P, R]]]:
        """The parts, and what starts a graph of them; not for the loop's own thread, which it waits for."""
        parts = Parts(self._profile, writable=True)
        pools: dict[Stage[Any], Pool] = {parts.shards: pool_of(parts.shards, self._writers)}

        def start(graph: Graph[P, R]) -> Running[P, R]:
            for stage in graph.stages:
                if stage not in pools:
                    pools[stage] = self._loop.wait(open_local(stage))
            return Running(graph, pools)

        return parts, start


class ReadAndCut(_Worker):
    """Sources in; a row for each batch out, with its new documents in chunks."""

    _step = "cut"

    def __init__(self, profile: Profile, writers: tuple[Any, ...], tenancy: Tenancy) -> None:
        super().__init__(profile, writers)
        self._tenancy = tenancy

    def _open(self) -> None:
        parts, start = self._starter()
        self._cut = asking(start(cut(parts)))

    def _work(self, rows: list[Row]) -> Iterator[list[Row]]:
        sources = (msgspec.msgpack.decode(row["source"], type=Source) for row in rows)
        seen = SeenIds()  # of this task; who takes the rows in looks across tasks
        for number, whole in enumerate(read_batches(sources, self._tenancy)):
            batch = without_repeats(whole, seen)
            chunked, refused = self._loop.wait(divided(self._cut, batch.documents))
            read = msgspec.structs.replace(batch, documents=[_without_text(d) for d in batch.documents])
            packed = [Refusal(_without_text(document), encode_error(error)) for document, error in refused]
            row = {"number": number, "read": encode(read), "documents": encode(chunked), "refused": encode(packed)}
            yield [_EMPTY_ROW | row]


class Embed(_Worker):
    """Rows in; the same rows out, with their documents embedded and the texts that the model read counted."""

    _step = "embed"

    def _open(self) -> None:
        parts, start = self._starter()
        self._embed = asking(start(embed(parts)))
        self._counters = start(embedder_counters(parts))

    def _work(self, rows: list[Row]) -> Iterator[list[Row]]:
        yield self._loop.wait(self._embedded(rows))

    async def _embedded(self, rows: list[Row]) -> list[Row]:
        """The rows, embedded side by side."""
        before = (await self._counters()).texts
        done = await asyncio.gather(*map(self._embedded_row, rows))
        done[0]["texts"] = (await self._counters()).texts - before
        return done

    async def _embedded_row(self, row: Row) -> Row:
        if row["error"]:
            return row
        chunked: list[ChunkedDocument] = decoder(list[ChunkedDocument]).decode(row["documents"])
        embedded, also = await divided(self._embed, chunked)
        refused: list[Refusal] = decoder(list[Refusal]).decode(row["refused"])
        refused += [Refusal(_without_text(c.document), encode_error(error)) for c, error in also]
        return {**row, "documents": encode(embedded), "refused": encode(refused)}


def _without_text(document: Document) -> Document:
    return msgspec.structs.replace(document, text="", metadata={})


def _table(rows: list[Row]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - heavy

    kinds = {name: pa.int64() if isinstance(empty, int) else pa.binary() for name, empty in _EMPTY_ROW.items()}
    return pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))
