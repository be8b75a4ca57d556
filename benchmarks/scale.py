"""Does a shard take a million chunks in bounded memory, and find exactly the ten that a filter allows?

Texts of 10 to 20 words, 64-dimensional random unit vectors, documents of ten chunks, written a thousand chunks at a
time; a graph that is quick to build (M = 8, ef_construction = 20), since what is found under the filter does not depend
on it. The bound: what hnswlib holds, twice, for it makes room by doubling; Java's heap of 512 MiB; and half a GiB for
everything else, whatever the number of chunks.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import BLOCK, STOP_WORDS, Collection
from benchmarks.report import Figure, emit
from operators.corpus.manifest import Corpus, CorpusConfig, create_corpus
from operators.corpus.shard import Shard
from operators.messages import EmbeddedDocument, Question, Ranking, Settings
from operators.plan_question import plan_question

QUESTION = __doc__.splitlines()[0]
FILTERS = 10  # documents that are asked for, one after another
OTHERS_MIB = 512 + 512


def rss_mib() -> float:
    """Memory of this process, its Java machine included."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mib() -> float:
    """The most that it ever was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def one(name: str, value: float, unit: str, *, lower_is_better: bool = True) -> Figure:
    """A figure that was measured once."""
    return Figure.over_runs(name, [value], unit, lower_is_better=lower_is_better)


async def timed(work: Awaitable[Any]) -> tuple[Any, float]:
    """The result, and milliseconds."""
    began = time.perf_counter()
    return await work, (time.perf_counter() - began) * 1e3


async def write(shard: Shard, collection: Collection) -> list[Figure]:
    """Writes everything; memory at each tenth, and the rate of the first and of the last tenth."""
    began, memory, marks, done = time.perf_counter(), [], [0.0], 0
    for block in collection.blocks():
        await shard.write(block, "given")
        done += sum(len(document.chunks) for document in block)
        if done * 10 >= len(marks) * collection.chunks:
            marks.append(time.perf_counter() - began)
            memory.append(rss_mib())
            print(f"{done:,} chunks, {marks[-1]:.0f} s, {memory[-1]:.0f} MiB", file=sys.stderr, flush=True)
    _, commit_ms = await timed(shard.commit())
    tenth = collection.chunks / 10
    return [
        one("written, generating included", collection.chunks / marks[-1], "chunks/s", lower_is_better=False),
        one("first tenth", tenth / (marks[1] - marks[0]), "chunks/s", lower_is_better=False),
        one("last tenth", tenth / (marks[-1] - marks[-2]), "chunks/s", lower_is_better=False),
        one("commit", commit_ms / 1e3, "s"),
        *(one(f"memory after {n + 1} tenths", value, "MiB") for n, value in enumerate(memory)),
    ]


async def under_filter(shard: Shard, collection: Collection) -> Iterator[Figure]:
    """For some documents: does each leg find all of their chunks, and nothing else, when only they are allowed?"""
    rng = np.random.default_rng([collection.seed, 9])
    numbers = rng.integers(collection.documents, size=FILTERS).tolist()
    shares: dict[str, list[float]] = {"dense": [], "lexical": []}
    first, again = [], []
    for number in numbers:
        document = collection.document(number)
        settings = Settings(limit=20, filters={"number": number})
        plan = plan_question(Question(" ".join(rare_words(document)), settings))
        vector = rng.standard_normal(collection.dimension).astype(np.float32)
        dense, first_ms = await timed(shard.dense(plan, vector))
        _, again_ms = await timed(shard.dense(plan, vector))
        first.append(first_ms)
        again.append(again_ms)
        for ranking in (dense, await shard.lexical(plan, None)):
            shares[ranking.leg].append(await found(shard, ranking, document, plan, vector))
    out = [
        Figure(
            f"{leg} leg: of the chunks allowed, found", sum(all_) / len(all_), "share", False, (min(all_), max(all_))
        )
        for leg, all_ in shares.items()
    ]
    out.append(Figure.over_runs("dense leg, first use of a filter", first, "ms"))
    out.append(Figure.over_runs("dense leg, the same filter again", again, "ms"))
    return iter(out)


async def found(shard: Shard, ranking: Ranking, document: EmbeddedDocument, plan: Any, vector: np.ndarray) -> float:
    """The share of the document's chunks that the ranking holds; 0 when it holds others."""
    passages = await shard.fetch(plan, vector, ranking)
    if any(passage.document_id != document.document.id for passage in passages):
        return 0.0
    return len({passage.text for passage in passages}) / len(document.chunks)


def rare_words(document: EmbeddedDocument) -> list[str]:
    """One word of each chunk that is no stop word, so that all of them match."""
    return [next(word for word in chunk.text.split() if word not in STOP_WORDS) for chunk in document.chunks]


async def measure(args: argparse.Namespace) -> list[Figure]:
    """All figures."""
    collection = Collection(args.chunks, args.seed, dimension=64, words=(10, 20), topics=0)
    with tempfile.TemporaryDirectory() as folder:
        corpus = new_corpus(Path(folder) / "corpus")
        shard = Shard.open(str(corpus.directory), 0, writable=True)
        figures = [one("memory before the first chunk", rss_mib(), "MiB")]
        figures += await write(shard, collection)
        figures += await under_filter(shard, collection)
        _, close_ms = await timed(shard.aclose())
        graph_mib = sum(path.stat().st_size for path in corpus.shard_directory(0).glob("dense-*")) / 2**20
        bound_mib = 2 * graph_mib + OTHERS_MIB
        figures += [
            one("peak memory", peak_mib(), "MiB"),
            one("the saved graph", graph_mib, "MiB"),
            one("peak memory / bound", peak_mib() / bound_mib, "ratio"),
            one("close", close_ms / 1e3, "s"),
        ]
        began = time.perf_counter()
        shard = Shard.open(str(corpus.directory), 0)
        figures.append(one("open again", time.perf_counter() - began, "s"))
        statistics, statistics_ms = await timed(shard.statistics())
        print(statistics, file=sys.stderr)
        assert statistics.chunks == statistics.dense_vectors == statistics.lexical_chunks == args.chunks
        figures.append(one("statistics", statistics_ms, "ms"))
        figures += [one(f"bytes of {part}", size, "B") for part, size in statistics.size_bytes.items()]
        await shard.aclose()
    return figures


def new_corpus(folder: Path) -> Corpus:
    """An empty corpus of one shard."""
    return create_corpus(folder, CorpusConfig(embedder="given", dimension=64, m=8, ef_construction=20))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    emit(
        QUESTION,
        asyncio.run(measure(args)),
        seed=args.seed,
        warm_up="none",
        runs="one; filters: the median of ten documents",
        as_json=args.json,
        packages=("hnswlib", "pyserini", "JPype1", "numpy"),
        notes=[
            f"{args.chunks:,} chunks of 10 to 20 words, 64-dimensional random unit vectors, ten a document, {BLOCK:,} "
            "a write; M = 8, ef_construction = 20",
            f"the bound is twice the saved graph and {OTHERS_MIB} MiB",
        ],
    )


if __name__ == "__main__":
    main()
