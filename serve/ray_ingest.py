"""The ingest job on the machines of a Ray cluster: Ray Data reads, cuts and embeds there, this process writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import ray
import ray.data
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.errors import HeadraceError, InvalidInput, StageDied
from engine.local import openers
from engine.process import ONE_THREAD
from engine.ray.actor import ReplicaActor
from engine.ray.cluster import START_TIMEOUT_S, ensure_ray
from engine.ray.transport import RayTransport
from engine.run import Running
from engine.stage import Stage
from engine.wire import decode_error, decoder
from graphs.ingest import commit, cut, embed, write
from operators.messages import Document, EmbeddedDocument, Written
from operators.read import Source
from serve.ingest_job import IngestJob, asking, divided
from serve.ingest_reader import Batch, SeenIds, without_repeats
from serve.ingest_report import IngestReport
from serve.ray_workers import Embed, ReadAndCut, Refusal, Row, pool_of

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 20  # of Ray Data's blocks: some batches; its default would hold back the first 128 MiB
_ROWS_EMBEDDED_TOGETHER = 4
_READER_CPUS, _EMBEDDER_CPUS = 0.5, 1.0


class _Arrived(NamedTuple):
    """A row of the dataset, here again."""

    batch: Batch  # its documents without their texts
    embedded: list[EmbeddedDocument]
    refused: list[tuple[Document, HeadraceError]]


class RayIngestJob(IngestJob):
    """One run of the ingest command on a Ray cluster, of the same operators and with the same promises as `IngestJob`.

    Every machine reads, so the paths must lead to the same files on all of them. Each shard's writer is an actor on
    this machine, which must be the one with the corpus's folder. Rows flow in the order of the files, so of documents
    with the same id the same one is taken in every run. This process takes the rows in, a few at a time, and Ray Data
    stops reading when its blocks (a share of the object store) wait to be taken. A task that died is run again by Ray;
    what it had led to is found unchanged.
    """

    async def run(self) -> IngestReport:
        """Ingest everything.

        Raises:
            InvalidInput: As `IngestJob.run`; or the cluster has no room for a reader and an embedder.
            HeadraceError: The job cannot go on. What was told as ingested is.
        """
        ensure_ray()
        readers, embedders = _pool_sizes(ray.cluster_resources(), self._configuration.embedder.threads)
        parts = self._parts()
        store, save, _ = write(parts), commit(parts), (cut(parts), embed(parts))  # drawn: the writers know all methods
        writers = await _open_writers(parts.shards)
        try:
            pools = {parts.shards: pool_of(parts.shards, writers)}
            self._store, self._texts = Running(store, pools), 0
            self._tally.opened()
            made = (parts.profile, tuple(writers))
            rows = _dataset(self._found.sources, (*made, self._tenancy), made, readers=readers, embedders=embedders)
            await self._pass(self._arriving(rows), self._take_in, Running(save, pools))
            await Running(save, pools)()
        finally:
            await asyncio.gather(*(RayTransport("shard", writer).aclose() for writer in writers))
        return self._tally.report(str(self._directory), embedded=self._texts)

    def _arriving(self, rows: Iterator[pa.Table]) -> Iterator[_Arrived]:
        seen = SeenIds()
        try:
            for table in rows:
                for row in table.to_pylist():
                    self._texts += row["texts"]
                    yield _arrived(row, seen)
        except RayError as error:
            raise StageDied(f"Ray Data stopped: {error}") from error

    async def _take_in(self, arrived: _Arrived) -> None:
        new, also = await divided(asking(self._store), arrived.embedded)
        refused = [*arrived.refused, *((e.document, error) for e, error in also)]
        changed = {e.document.id for e in arrived.embedded} | {document.id for document, _ in refused}
        same = [Written(d.id, "unchanged", 0) for d in arrived.batch.documents if d.id not in changed]
        self._tally.add(arrived.batch, [*new, *same], refused)
        self._tell(self._tally.progress())


def _dataset(
    sources: list[Source], reading: tuple[Any, ...], embedding: tuple[Any, ...], *, readers: int, embedders: int
) -> Iterator[pa.Table]:
    """The rows of all sources, in their order, as they come."""
    if not sources:
        return iter(())
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    dataset = ray.data.from_items([{"source": msgspec.msgpack.encode(source)} for source in sources])
    dataset = dataset.map_batches(
        ReadAndCut,
        fn_constructor_args=reading,
        batch_format="pyarrow",
        concurrency=(1, readers),
        num_cpus=_READER_CPUS,
    ).map_batches(
        Embed,
        fn_constructor_args=embedding,
        batch_format="pyarrow",
        batch_size=_ROWS_EMBEDDED_TOGETHER,
        concurrency=(1, embedders),
        num_cpus=_EMBEDDER_CPUS,
        num_gpus=gpus,
    )
    context = dataset.context
    context.target_max_block_size = _BLOCK_BYTES
    context.execution_options.preserve_order = True
    context.enable_progress_bars = context.print_on_execution_start = False
    return iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow"))


def _pool_sizes(cluster: dict[str, float], threads: int) -> tuple[int, int]:
    """How many actors read, and how many embed: one a GPU, or as many as the processors carry.

    Raises:
        InvalidInput: There is no room for one of each.
    """
    cpus = cluster.get("CPU", 0.0)
    if cpus < _READER_CPUS + _EMBEDDER_CPUS:
        raise InvalidInput(
            f"the Ray cluster has {cpus:g} CPUs; ingest needs {_READER_CPUS + _EMBEDDER_CPUS:g}: add a node, "
            "or use --engine local"
        )
    readers = max(1, int(cpus / 8))
    gpus = int(cluster.get("GPU", 0))
    return readers, gpus or max(1, int((cpus - readers * _READER_CPUS) / max(threads, _EMBEDDER_CPUS)))


async def _open_writers(stage: Stage[Any]) -> list[Any]:
    """One actor for each shard, on this machine.

    Raises:
        HeadraceError: A shard could not be opened; those that were are closed again.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(ReplicaActor).options(
        num_cpus=0,
        scheduling_strategy=here,
        max_concurrency=1024,
        max_restarts=0,
        runtime_env={"env_vars": {**ONE_THREAD, **stage.environment}},
    )
    writers = [actor.remote() for _ in openers(stage)]
    transports = [RayTransport(stage.name, writer) for writer in writers]
    starts = (t.start(o, stage.methods, START_TIMEOUT_S) for t, o in zip(transports, openers(stage), strict=True))
    failures = [f for f in await asyncio.gather(*starts, return_exceptions=True) if f is not None]
    if failures:
        await asyncio.gather(*(transport.aclose() for transport in transports))
        raise failures[0]
    return writers


def _arrived(row: Row, seen: SeenIds) -> _Arrived:
    if row["error"]:
        raise decode_error(row["error"])
    batch = without_repeats(decoder(Batch).decode(row["read"]), seen)
    wanted = {document.id for document in batch.documents}
    first: dict[str, EmbeddedDocument] = {}
    for embedded in decoder(list[EmbeddedDocument]).decode(row["documents"]):
        if embedded.document.id in wanted:
            first.setdefault(embedded.document.id, embedded)
    refused = [(r.document, decode_error(r.error)) for r in decoder(list[Refusal]).decode(row["refused"])]
    return _Arrived(batch, list(first.values()), refused)
