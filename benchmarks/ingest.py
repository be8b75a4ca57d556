"""Does ingest keep pace with its embedder, in bounded memory, and does one document more cost the same in any corpus?

Three measurements:

- The whole in-process ingest (read, cut, embed, write, both indexes, save) of a BEIR file against
  `SentenceTransformer.encode` of the very texts that it embeds, with the same model and threads, at the batch size that
  suits it best. In turn, in one process; loading models and starting the shard's JVM is left out on both sides.
- The most memory that an ingest takes, its children included: sums of resident sets, so that pages which processes
  share count twice. Random unit vectors stand for the embedder's work; its model is loaded all the same.
- The time of `Shard.write` of one document into a large and into a small corpus, in turn, in one process. When it
  returns, searches find the document; that is checked after each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.corpora import Collection
from benchmarks.report import Figure, emit, percentile
from engine.stage import Stage
from graphs.parts import Parts
from operators.chunk import ChunkConfig
from operators.chunking import Chunker
from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.corpus.shard import Shard
from operators.messages import ChunkedDocument, EmbeddedDocument, KnownVectors, Leg, Plan
from operators.models.embedder import Embedder, EmbedderConfig, EmbedderStatistics, passage_text
from serve.ingest_job import IngestJob
from serve.settings import Configuration

QUESTION = __doc__.splitlines()[0]
BATCH_SIZES = (8, 16, 32, 64, 128)


def write_beir(collection: Collection, folder: Path) -> Path:
    """The collection's documents as a BEIR folder."""
    folder.mkdir(parents=True)
    with (folder / "corpus.jsonl").open("wb") as file:
        for block in collection.blocks():
            for d in (embedded.document for embedded in block):
                file.write(msgspec.json.encode({"_id": d.id, "title": d.title, "text": d.text}) + b"\n")
    return folder


# Pace


def pace(folder: Path, *, documents: int, runs: int, threads: int, seed: int) -> tuple[list[Figure], list[str]]:
    """Documents a second of the bare embedder and of ingest, and the share."""
    from sentence_transformers import SentenceTransformer

    collection = Collection(chunks=documents * 3, seed=seed, chunks_each=3)
    embedder = EmbedderConfig(threads=threads)
    texts = asyncio.run(texts_of(collection, embedder))
    files = write_beir(collection, folder / "files")
    opened = Embedder.open(embedder)  # sets torch's threads, too
    model: SentenceTransformer = opened._model
    some = texts[:: max(1, len(texts) // 48)]
    bare(model, some, 32)
    size = min(BATCH_SIZES, key=lambda size: bare(model, some, size))
    say(f"{len(texts)} texts, encode batch size {size}")
    bare_s, ingest_s = [], []
    for number in range(runs):
        bare_s.append(bare(model, texts, size))
        job = IngestJob([files], folder / f"corpus-{number}", Configuration(embedder=embedder))
        report = asyncio.run(job.run())
        if (report.added, report.embedded) != (documents, len(texts)):
            raise RuntimeError(f"expected {documents} documents and {len(texts)} texts: {report}")
        ingest_s.append(report.seconds - report.opening_seconds)
        say(f"run {number + 1} of {runs}: bare {bare_s[-1]:.1f} s, ingest {ingest_s[-1]:.1f} s")
    asyncio.run(opened.aclose())
    figures = [
        Figure.over_runs("bare embedder", [documents / s for s in bare_s], "documents/s", lower_is_better=False),
        Figure.over_runs("whole ingest", [documents / s for s in ingest_s], "documents/s", lower_is_better=False),
        Figure.over_runs(
            "ingest / bare embedder", [b / i for b, i in zip(bare_s, ingest_s, strict=True)], "share",
            lower_is_better=False,
        ),
    ]  # fmt: skip
    return figures, [f"pace: {documents} documents, {len(texts)} texts, {threads} thread(s), encode batch size {size}"]


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


async def texts_of(collection: Collection, embedder: EmbedderConfig) -> list[str]:
    """What ingest embeds of the collection."""
    chunker = Chunker.open(ChunkConfig(), embedder)
    cut = await chunker.chunk([embedded.document for block in collection.blocks() for embedded in block])
    await chunker.aclose()
    return [passage_text(document.document.title, chunk) for document in cut for chunk in document.chunks]


def bare(model: Any, texts: list[str], size: int) -> float:
    """Seconds to encode all texts."""
    began = time.perf_counter()
    model.encode(texts, batch_size=size, normalize_embeddings=True, show_progress_bar=False)
    return time.perf_counter() - began


# Memory


class RandomEmbedder:
    """Random unit vectors in place of an embedder's, whose model lies in memory."""

    def __init__(self) -> None:
        self._model = Embedder.open(EmbedderConfig())
        self._rng = np.random.default_rng(0)
        self._texts = 0

    async def embed_documents(self, documents: list[ChunkedDocument], known: KnownVectors) -> list[EmbeddedDocument]:
        return [EmbeddedDocument(d.document, d.chunks, self._vectors(len(d.chunks))) for d in documents]

    def _vectors(self, count: int) -> np.ndarray:
        self._texts += count
        vectors = self._rng.standard_normal((count, self._model.dimension), np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    async def counters(self) -> EmbedderStatistics:
        return msgspec.structs.replace(self._model.statistics(), texts=self._texts)

    async def aclose(self) -> None:
        await self._model.aclose()


class RandomJob(IngestJob):
    """An ingest with a `RandomEmbedder`."""

    def _parts(self) -> Parts:
        parts = super()._parts()
        parts.__dict__["embedder"] = Stage("embedder", RandomEmbedder)
        return parts


def memory(folder: Path, *, chunks: int, seed: int) -> tuple[list[Figure], list[str]]:
    """Peak resident memory of an ingest, in a process of its own."""
    files = write_beir(Collection(chunks=chunks, seed=seed, topics=0, words=(40, 60)), folder / "files")
    command = [sys.executable, "-m", "benchmarks.ingest", "--random-ingest", str(files), str(folder / "corpus")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child, sampled(child.pid) as samples:
        output = child.communicate()[0]
    report = msgspec.json.decode(output)
    total = [sum(sizes.values()) for sizes in samples]
    ours = [sizes.get(child.pid, 0) for sizes in samples]
    late = [size for size in ours[len(ours) // 2 :] if size]
    figures = [
        single("peak memory of an ingest, all processes", max(total) / 2**20, "MiB"),
        single("of it, the process that reads, cuts and embeds", max(ours) / 2**20, "MiB"),
        single("growth of that process over the second half", (late[-1] - late[0]) / 2**20, "MiB"),
        single("chunks/s without embedding", report["chunks"] / (report["seconds"] - report["opening_seconds"]), "1/s"),
    ]
    return figures, [f"memory: {report['chunks']} chunks in {report['added']} documents, random unit vectors"]


@contextlib.contextmanager
def sampled(pid: int) -> Iterator[list[dict[int, int]]]:
    """Resident bytes of a process and its descendants, by id, ten times a second while the block runs."""
    samples: list[dict[int, int]] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            samples.append({one: resident_bytes(one) for one in family(pid)})

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def family(pid: int) -> list[int]:
    """A process and its descendants that are still there."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(one for child in children for one in family(child))]


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# One document more


async def one_more(folder: Path, sizes: tuple[int, int], *, documents: int, runs: int, seed: int) -> list[Figure]:
    """Milliseconds of writing one document into a corpus of each size, and their ratio."""
    # With topics: among vectors without structure a graph does not always find a vector by itself.
    corpora = [Collection(chunks=size, seed=seed) for size in sizes]
    shards = [await filled(folder / str(c.chunks), c) for c in corpora]
    medians: list[list[float]] = [[], []]
    for run in range(runs + 1):  # the first warms up
        times_ms: list[list[float]] = [[], []]
        for number in range(documents):
            for at, shard in enumerate(shards):
                times_ms[at].append(await added(shard, corpora[at], run * documents + number))
        for at in range(2):
            medians[at].append(percentile(times_ms[at], 50))
        say(f"run {run} of {runs}: {medians[0][-1]:.1f} and {medians[1][-1]:.1f} ms")
    await asyncio.gather(*(shard.aclose() for shard in shards))
    large, small = (times[1:] for times in medians)
    names = [f"one document into {size:,} chunks" for size in sizes]
    ratios = [a / b for a, b in zip(large, small, strict=True)]
    return [
        Figure.over_runs(names[0], large, "ms"),
        Figure.over_runs(names[1], small, "ms"),
        Figure.over_runs(f"one document, {sizes[0]:,} chunks / {sizes[1]:,} chunks", ratios, "ratio"),
    ]


async def filled(folder: Path, collection: Collection) -> Shard:
    """A shard with the collection's documents, saved."""
    create_corpus(folder, CorpusConfig(embedder="random", dimension=collection.dimension))
    shard = Shard.open(str(folder), 0, writable=True)
    for block in collection.blocks():
        await shard.write(block, "generated")
    await shard.commit()
    return shard


async def added(shard: Shard, collection: Collection, number: int) -> float:
    """Milliseconds until one more document is on the disk and found."""
    made = collection.document(0, version=1 + number, extra=f"zq{number}zq")
    document = msgspec.structs.replace(made.document, id=f"more-{number}")
    began = time.perf_counter()
    await shard.write([EmbeddedDocument(document, made.chunks, made.vectors)], "generated")
    took = time.perf_counter() - began
    leg = Leg("dense", 1.0, 5), Leg("lexical", 1.0, 5)
    plan = Plan(question=f"zq{number}zq", strategy="hybrid", legs=leg, limit=5, rerank_candidates=0, language="en")
    for ranking in (await shard.lexical(plan, None), await shard.dense(plan, made.vectors[0])):
        best = (await shard.fetch(plan, made.vectors[0], ranking))[0]
        if best.document_id != document.id:
            raise RuntimeError(f"{document.id} was written and {ranking.leg} search finds {best.document_id}")
    return 1000 * took


def single(name: str, value: float, unit: str) -> Figure:
    """The figure of one run."""
    return Figure.over_runs(name, [value], unit, lower_is_better=unit != "1/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--only", choices=("pace", "memory", "one"), help="one of the three measurements")
    parser.add_argument("--documents", type=int, default=100, help="of the measurement of pace, three chunks each")
    parser.add_argument("--threads", type=int, default=1, help="torch's, on both sides")
    parser.add_argument("--chunks", type=int, default=100_000, help="of the memory and of the large corpus")
    parser.add_argument("--small", type=int, default=1_000, help="chunks of the small corpus")
    parser.add_argument("--more", type=int, default=40, help="documents added to each corpus in a run")
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--random-ingest", nargs=2, metavar=("FILES", "CORPUS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.random_ingest:
        files, corpus = map(Path, options.random_ingest)
        report = asyncio.run(RandomJob([files], corpus, Configuration()).run())
        print(msgspec.json.encode(report).decode())
        return

    figures: list[Figure] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headrace-ingest-") as made:
        folder = Path(made)
        if options.only in (None, "pace"):
            sizes = {"documents": options.documents, "runs": options.runs, "threads": options.threads}
            some, noted = pace(folder / "pace", **sizes, seed=options.seed)
            figures, notes = figures + some, notes + noted
        if options.only in (None, "memory"):
            some, noted = memory(folder / "memory", chunks=options.chunks, seed=options.seed)
            figures, notes = figures + some, notes + noted
        if options.only in (None, "one"):
            counts = {"documents": options.more, "runs": options.runs}
            figures += asyncio.run(
                one_more(folder / "one", (options.chunks, options.small), **counts, seed=options.seed)
            )
            notes.append(f"one document: ten chunks of 60 to 120 words; {options.more} a run and size, in turn")
    emit(
        QUESTION,
        figures,
        seed=options.seed,
        warm_up="encode of some 48 texts at each batch size; one run of added documents, discarded",
        runs=f"{options.runs}, interleaved; memory once; value = median, spread = min, max",
        as_json=options.json,
        packages=["torch", "sentence-transformers", "hnswlib"],
        notes=notes,
    )


if __name__ == "__main__":
    main()
