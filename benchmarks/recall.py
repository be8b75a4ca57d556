"""How much of the exact ten nearest chunks the dense leg finds, with and without filters, and how long filters take.

Shape legend: N = chunks, D = dimensions, Q = questions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.corpora import Collection
from benchmarks.report import Figure, percentile
from benchmarks.sides import InProcess
from operators.corpus.keys import chunk_key
from operators.corpus.shard import Shard
from operators.messages import Question, Settings
from operators.plan_question import plan_question

K = 10


class Exact:
    """The truth: every vector of a collection compared with the question."""

    def __init__(self, collection: Collection) -> None:
        self._vectors_ND = collection.vectors()
        rows = np.arange(collection.chunks)
        self.document_N = rows // collection.chunks_each
        ordinals = rows % collection.chunks_each
        places = zip(self.document_N.tolist(), ordinals.tolist(), strict=True)
        self._row = {chunk_key(collection.name(number), ordinal): row for row, (number, ordinal) in enumerate(places)}

    def best(self, query: np.ndarray, among: np.ndarray | None = None) -> set[int]:
        """Rows of the K nearest chunks, of those that `among`, bool[N], lets through."""
        rows = np.arange(len(self._vectors_ND)) if among is None else np.flatnonzero(among)
        scores = self._vectors_ND[rows] @ query
        return set(rows[np.argsort(-scores, kind="stable")[:K]].tolist())

    def rows(self, keys: np.ndarray) -> set[int]:
        """Rows of chunks by their keys."""
        return {self._row[key] for key in keys.tolist()}


async def _found(shard: Shard, vector: np.ndarray, filters: dict[str, Any], candidates: int) -> np.ndarray:
    settings = Settings(limit=K, candidates=candidates, legs={"dense": 1.0}, filters=filters)
    return (await shard.dense(plan_question(Question("by vector alone", settings)), vector)).keys[:K]


def _share(name: str, shares: Sequence[float]) -> Figure:
    return Figure(name, round(statistics.mean(shares), 4), "share", False, (min(shares), max(shares)))


async def recall(shard: Shard, exact: Exact, vectors: np.ndarray, name: str) -> Iterator[Figure]:
    """Recall at the corpus's own ef_search, for a leg that is asked for ten hits and for the hundred of a hybrid."""
    figures = []
    for candidates in (K, 100):
        shares = []
        for vector in vectors:
            truth, found = exact.best(vector), exact.rows(await _found(shard, vector, {}, candidates))
            shares.append(len(found & truth) / len(truth))
        figures.append(_share(f"dense leg, {name}: recall@{K} of {candidates} hits", shares))
    return iter(figures)


async def filtered(shard: Shard, exact: Exact, questions: tuple[Sequence[str], np.ndarray], seed: int) -> list[Figure]:
    """Recall of the dense leg and latency of hybrid search under filters of three selectivities."""
    documents, rng, figures = int(exact.document_N.max()) + 1, np.random.default_rng([seed, 7]), []
    cases = {
        "50 %": [({"half": n}, exact.document_N % 2 == n) for n in range(2)],
        "1 %": [
            ({"hundredth": n}, exact.document_N % 100 == n) for n in rng.permutation(min(100, documents))[:20].tolist()
        ],
        "one document": [({"number": n}, exact.document_N == n) for n in rng.integers(documents, size=20).tolist()],
    }
    ours = InProcess(shard)
    for name, filters in cases.items():
        shares, first, again = [], [], []
        for filter_, among in filters:
            for number, (text, vector) in enumerate(zip(*questions, strict=True)):
                began = time.perf_counter()
                await ours.ask(text, vector, Settings(filters=filter_))
                (again if number else first).append((time.perf_counter() - began) * 1e3)
                truth = exact.best(vector, among)
                found = exact.rows(await _found(shard, vector, filter_, K))
                shares.append(len(found & truth) / len(truth))
        share = f"filter that allows {name} ({int(filters[0][1].sum()):,} chunks)"
        figures.append(_share(f"{share}: recall@{K}", shares))
        figures += [Figure.over_runs(f"{share}: hybrid, first use", first, "ms")]
        figures += [
            Figure(f"{share}: hybrid p{p}", round(percentile(again, p), 3), "ms", True, (min(again), max(again)))
            for p in (50, 99)
        ]
    return figures
