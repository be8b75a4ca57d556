"""The ingest job on the machines of a Ray cluster: Ray Data reads, cuts and embeds there, this process writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError
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
from operators.models.embedder import EmbedderConfig
from serve.ingest_job import BATCHES_IN_FLIGHT, IngestJob, Write, asking, divided
from serve.ingest_reader import Batch, SeenIds, without_repeats
from serve.ingest_report import IngestReport
from serve.ray_workers import EMBEDDER_CPUS, READER_CPUS, Dataset, Refusal, Row, Sizes, pool_of

_RUN_AGAIN = "run the ingest again to go on, and report this"


class _Arrived(NamedTuple):
    """A row of the dataset, here again."""

    batch: Batch  # its documents without their texts
    embedded: list[EmbeddedDocument]
    refused: list[tuple[Document, HeadraceError]]


class _Arrivals:
    """Takes the rows in, and sees that none is missing.

    Ray Data runs tasks of dead actors again; that this neither loses nor repeats a row hangs on how it makes blocks,
    and a document that was lost without a word is worse than a job that ends.
    """

    def __init__(self) -> None:
        self._seen = SeenIds()
        self._next = self._sources = 0

    def take(self, row: Row) -> _Arrived:
        """What is in the next row, but for documents whose ids came in an earlier one.

        Raises:
            HeadraceError: The one at which the job ends.
        """
        if row["error"]:
            raise decode_error(row["error"])
        if row["number"] not in (0, self._next):  # 0: of the next task
            raise StageDied(f"batch {row['number']} came where {self._next} should: {_RUN_AGAIN}")
        self._next = row["number"] + 1
        batch = without_repeats(decoder(Batch).decode(row["read"]), self._seen)
        self._sources += batch.sources
        wanted = {document.id for document in batch.documents}
        embedded: list[EmbeddedDocument] = decoder(list[EmbeddedDocument]).decode(row["documents"])
        refused: list[Refusal] = decoder(list[Refusal]).decode(row["refused"])
        return _Arrived(
            batch,
            [e for e in embedded if e.document.id in wanted],
            [(r.document, decode_error(r.error)) for r in refused if r.document.id in wanted],
        )

    def end(self, sources: int) -> None:
        """There are no more.

        Raises:
            StageDied: So many sources should have come.
        """
        if self._sources != sources:
            raise StageDied(f"of {sources} files {self._sources} came: {_RUN_AGAIN}")


class RayIngestJob(IngestJob):
    """One run of the ingest command on a Ray cluster, of the same operators and with the same promises as `IngestJob`.

    Every machine reads, so the paths must lead to the same files on all of them. Each shard's writer is an actor on
    this machine, which must be the one with the corpus's folder. Rows flow in the order of the files, so of documents
    with the same id the same one is taken in every run. This process takes the rows in, a few at a time, and Ray Data
    stops reading when its blocks (a share of the object store) wait to be taken. A reader or an embedder that died is
    started again by Ray; what it had led to is found unchanged. The death of a writer ends the job.
    """

    _embedded = 0  # texts that the model read

    async def run(self) -> IngestReport:
        """Ingest everything.

        Raises:
            InvalidInput: As `IngestJob.run`; or the cluster has no room for a reader and an embedder.
            HeadraceError: The job cannot go on. What was told as ingested is.
        """
        ensure_ray()
        sizes = _sizes(ray.cluster_resources(), self._configuration.embedder)
        parts = self._parts()
        store, save, _ = write(parts), commit(parts), (cut(parts), embed(parts))  # drawn: the writers know all methods
        dataset = _here(Dataset).remote(self._found.sources, self._tenancy, sizes=sizes)  # imports Ray Data meanwhile
        writers: list[Any] = []
        try:
            writers += await _open_writers(parts.shards)
            pools = {parts.shards: pool_of(parts.shards, writers)}
            stored, saved = asking(Running(store, pools)), Running(save, pools)
            self._tally.opened()
            rows = dataset.rows.options(num_returns="streaming", _generator_backpressure_num_objects=BATCHES_IN_FLIGHT)
            arriving = self._arriving(rows.remote(parts.profile, tuple(writers)))
            await self._pass(arriving, partial(self._take_in, stored), saved)
            await saved()
        finally:
            ray.kill(dataset)
            await asyncio.gather(*(RayTransport("shard", writer).aclose() for writer in writers))
        return self._tally.report(str(self._directory), embedded=self._embedded)

    async def _arriving(self, rows: Any) -> AsyncGenerator[_Arrived, None]:
        arrivals = _Arrivals()
        try:
            async for ref in rows:
                for row in await ref:
                    self._embedded += row["texts"]
                    yield arrivals.take(row)
            arrivals.end(len(self._found.sources))
        except RayError as error:
            raise StageDied(f"Ray Data stopped: {_reason(error)}; run the ingest again to go on") from error

    async def _take_in(self, write: Write[EmbeddedDocument], arrived: _Arrived) -> None:
        new, also = await divided(write, arrived.embedded)
        refused = [*arrived.refused, *((e.document, error) for e, error in also)]
        changed = {e.document.id for e in arrived.embedded} | {document.id for document, _ in refused}
        same = [Written(d.id, "unchanged", 0) for d in arrived.batch.documents if d.id not in changed]
        self._tally.add(arrived.batch, [*new, *same], refused)
        self._tell(self._tally.progress())


def _sizes(cluster: dict[str, float], embedder: EmbedderConfig) -> Sizes:
    """How many actors read, and how many embed: one a GPU, or as many as the processors carry.

    Raises:
        InvalidInput: There is no room for one of each.
    """
    cpus = cluster.get("CPU", 0.0)
    if cpus < READER_CPUS + EMBEDDER_CPUS:
        raise InvalidInput(
            f"the Ray cluster has {cpus:g} CPUs; ingest needs {READER_CPUS + EMBEDDER_CPUS:g}: add a node, "
            "or use --engine local"
        )
    readers = max(1, int(cpus / 8))
    gpus = 0 if embedder.device == "cpu" else int(cluster.get("GPU", 0))
    on_cpus = max(1, int((cpus - readers * READER_CPUS) / max(embedder.threads, EMBEDDER_CPUS)))
    return Sizes(readers=readers, embedders=gpus or on_cpus, gpus=min(1, gpus))


def _here(actor: type, concurrency: int = 1, environment: dict[str, str] | None = None) -> Any:
    """The class of an actor on this machine that takes none of its CPUs from readers and embedders."""
    return ray.remote(actor).options(
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
        max_concurrency=concurrency,
        max_restarts=0,
        runtime_env={"env_vars": {**ONE_THREAD, **(environment or {})}},
    )


async def _open_writers(stage: Stage[Any]) -> list[Any]:
    """One actor for each shard, on this machine.

    Raises:
        HeadraceError: A shard could not be opened; those that were are closed again.
    """
    actor = _here(ReplicaActor, 1024, stage.environment)
    writers = [actor.remote() for _ in openers(stage)]
    transports = [RayTransport(stage.name, writer) for writer in writers]
    starts = (t.start(o, stage.methods, START_TIMEOUT_S) for t, o in zip(transports, openers(stage), strict=True))
    failures = [f for f in await asyncio.gather(*starts, return_exceptions=True) if f is not None]
    if failures:
        await asyncio.gather(*(transport.aclose() for transport in transports))
        raise failures[0]
    return writers


def _reason(error: RayError) -> str:
    """What Ray says, without the way there."""
    return str(error).strip().splitlines()[0 if isinstance(error, RayActorError) else -1]
