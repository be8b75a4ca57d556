"""How far above bare hnswlib and Lucene is hybrid search, and how far ahead of LanceDB and txtai?

The same generated chunks and questions, embedded beforehand, for every side: ten texts by reciprocal rank fusion of the
hundred best of each leg. Each side has a process of its own; the sides are asked in turn, round by round, by one client
and by eight. Then, how much of the exact ten nearest the dense leg finds, with filters and without, and on random
vectors, which have no structure that an index could use.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import sides
from benchmarks.corpora import Collection
from benchmarks.recall import Exact, filtered, recall
from benchmarks.report import Figure, emit, percentile
from operators.corpus.manifest import IndexConfig
from operators.corpus.shard import Shard

QUESTION = __doc__.splitlines()[0]
CLIENTS = (1, 8)
FLOORS = ("floor", "floor, leg after leg")
PEERS = {"lancedb": sides.lancedb, "txtai": sides.txtai}
PACKAGES = ("hnswlib", "pyserini", "JPype1", "numpy")
Seen = dict[tuple[str, int], dict[str, list[float]]]  # by way and clients: p50, p99 and rate of each round


WARM_UP = 4  # rounds: Java compiles what it has run often


def rounds(processes: Sequence[sides.SideProcess], runs: int) -> Seen:
    """Interleaved rounds, the first ones of which warm up and are dropped."""
    seen: Seen = {}
    for run in range(1 - WARM_UP, runs + 1):
        for process in processes:
            for way in process.ways:
                for clients in CLIENTS:
                    took, seconds = process.timed(way, clients)
                    if run < 1:
                        continue
                    row = seen.setdefault((way, clients), {"p50": [], "p99": [], "rate": []})
                    row["p50"].append(percentile(took, 50) * 1e3)
                    row["p99"].append(percentile(took, 99) * 1e3)
                    row["rate"].append(len(took) / seconds)
        p50 = (f"{way} {row['p50'][-1]:.1f}" for (way, clients), row in seen.items() if clients == 1)
        say(f"round {run} of {runs}; p50 in ms: {', '.join(p50)}")
    return seen


def figures(seen: Seen) -> Iterator[Figure]:
    """Medians over the rounds, and the ratios that the issue asks for, round by round."""
    for (way, clients), row in seen.items():
        name = f"{way}, {clients} client{'s' * (clients > 1)}"
        for percent in ("p50", "p99"):
            yield Figure.over_runs(f"{name}, {percent}", row[percent], "ms")
        yield Figure.over_runs(name, row["rate"], "questions/s", lower_is_better=False)
    for clients in CLIENTS:
        for what in ("p50", "p99", "rate"):
            yield from _ratios(seen, clients, what)


def _ratios(seen: Seen, clients: int, what: str) -> Iterator[Figure]:
    """How many times better the bare libraries are than ours, and ours than the peers."""
    name = f"{what}, {clients} client{'s' * (clients > 1)}"
    for way in dict.fromkeys(way for way, _ in seen):
        pairs = zip(seen["headrace", clients][what], seen[way, clients][what], strict=True)
        behind = [theirs / ours if what == "rate" else ours / theirs for ours, theirs in pairs]
        if way in FLOORS:
            yield Figure.over_runs(f"headrace over {way}: {name}", behind, "times")
        elif not way.startswith("headrace"):
            ahead = [1 / times for times in behind]
            yield Figure.over_runs(f"headrace ahead of {way}: {name}", ahead, "times", lower_is_better=False)


def agreement(processes: Sequence[sides.SideProcess]) -> Iterator[Figure]:
    """The share of the floor's ten texts that each way finds, too: whether all do the same work."""
    found = {way: process.answers(way) for process in processes for way in process.ways}
    truth = found["floor"]
    for way, answers in found.items():
        if way not in FLOORS:
            shares = [len(set(a) & set(t)) / len(set(t)) for a, t in zip(answers, truth, strict=True)]
            mean = round(sum(shares) / len(shares), 4)
            yield Figure(f"{way}: texts in common with the floor", mean, "share", False, (min(shares), max(shares)))


async def quality(bench: sides.Bench, unstructured: int) -> list[Figure]:
    """Recall, filtered and not, on the corpus of the rounds; then on random vectors."""
    texts, vectors = bench.questions
    shard, exact = Shard.open(str(bench.folder / "corpus"), 0), Exact(bench.collection)
    out = list(await recall(shard, exact, vectors, "clustered vectors"))
    out += await filtered(shard, exact, (texts[:20], vectors[:20]), bench.collection.seed)
    await shard.aclose()
    say("recall and filters")
    if unstructured:
        random = Collection(unstructured, bench.collection.seed, words=(3, 6), topics=0)
        shard = await sides.filled(bench.folder / "random", random, IndexConfig())
        out += await recall(shard, Exact(random), random.questions(min(200, bench.count))[1], "random unit vectors")
        await shard.aclose()
        say("random vectors")
    return out


def measure(args: argparse.Namespace, bench: sides.Bench) -> list[Figure]:
    """All figures."""
    processes = []
    for side in (sides.ours, sides.graphs, sides.floor, *(PEERS[peer] for peer in filter(None, args.peers.split(",")))):
        began = time.perf_counter()
        processes.append(sides.SideProcess(side, bench))
        say(f"{side.__name__} is ready after {time.perf_counter() - began:.0f} s")
    try:
        found = [*figures(rounds(processes, args.runs)), *agreement(processes)]
    finally:
        for process in reversed(processes):
            process.close()
    return found + asyncio.run(quality(bench, args.random))


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=500, help="per round, way and number of clients")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peers", default="lancedb,txtai", help="of these; empty for none")
    parser.add_argument("--random", type=int, default=100_000, help="random vectors to find; 0 leaves them out")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    collection = Collection(args.chunks, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args, sides.Bench(Path(folder), collection, args.questions))
    emit(
        QUESTION,
        found,
        seed=args.seed,
        warm_up=f"{WARM_UP} rounds of everything",
        runs=f"{args.runs} interleaved rounds of {args.questions} questions each, by 1 and by 8 clients",
        as_json=args.json,
        packages=(*PACKAGES, *filter(None, args.peers.split(","))),
        notes=[
            f"{args.chunks:,} chunks of 60 to 120 words, Zipf-Mandelbrot, {collection.chunks_each} a document; "
            f"{collection.dimension} dimensions, {collection.topics:,} topics in {collection.topics // 30} fields",
            "clients are asyncio tasks for headrace, threads for the others; hnswlib uses one thread a question, "
            "LanceDB and txtai as many as they like",
            "the floor fuses and fetches from memory; LanceDB: one partition of IVF_HNSW_SQ, full text index, RRF; "
            "txtai: hnsw backend with ef 100, BM25, texts from memory, too",
            "headrace: in one process, without feedback; headrace graph: planner to page through the engine, its shard "
            "in a child process",
        ],
    )


if __name__ == "__main__":
    main()
