"""Exact search among vectors in memory, with scores that depend on nothing but the two vectors.

Shape legend: N = vectors, D = dimensions, K = hits.
"""

from __future__ import annotations

import numpy as np


class VectorTable:
    """Vectors by key in one array, which grows and shrinks a row at a time. Not for two threads at once."""

    def __init__(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        self._row = {key: row for row, key in enumerate(keys.tolist())}
        self._keys = keys.copy()
        self._vectors = vectors.copy()

    def __len__(self) -> int:
        return len(self._row)

    @property
    def keys(self) -> np.ndarray:
        """int64[N], in the order of `vectors`; a view that the next change invalidates."""
        return self._keys[: len(self)]

    @property
    def vectors(self) -> np.ndarray:
        """float32[N, D]; a view that the next change invalidates."""
        return self._vectors[: len(self)]

    def put(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Adds vectors, or puts them in the place of those with the same keys."""
        self._make_room(len(keys), vectors.shape[1])
        for key, vector in zip(keys.tolist(), vectors, strict=True):
            row = self._row.setdefault(key, len(self._row))
            self._keys[row] = key
            self._vectors[row] = vector

    def _make_room(self, more: int, dimension: int) -> None:
        needed = len(self) + more
        if needed > len(self._keys):
            grown = np.empty((2 * needed, dimension), np.float32), np.empty(2 * needed, np.int64)
            if len(self):
                grown[0][: len(self)], grown[1][: len(self)] = self.vectors, self.keys
            self._vectors, self._keys = grown

    def drop(self, key: int) -> None:
        """Removes a vector, if it is there; the last one takes its row."""
        row = self._row.pop(key, None)
        if row is None or row == len(self._row):
            return
        last = int(self._keys[len(self._row)])
        self._keys[row], self._vectors[row] = last, self._vectors[len(self._row)]
        self._row[last] = row


def best(
    keys: np.ndarray,
    vectors: np.ndarray,
    query: np.ndarray,
    *,
    limit: int,
    measure: str,
    only: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The hits: keys int64[K] and scores float32[K], score descending, then key ascending, K up to `limit`.

    Args:
        keys: int64[N].
        vectors: float32[N, D].
        query: float32[D].
        limit: K at most.
        measure: "cosine" and "ip" score by the inner product, "l2" by the negated squared distance.
        only: Rows to choose from, bool[N]; None for all.
    """
    rows = np.arange(len(keys)) if only is None else np.flatnonzero(only)
    if len(rows) > limit > 0:
        # BLAS is quick, but its last bits depend on a row's place: it only says which rows can be among the best.
        rough = vectors @ query
        if measure == "l2":
            rough = 2 * rough - np.einsum("nd,nd->n", vectors, vectors)
        rough = rough[rows]
        bar = np.partition(rough, len(rows) - limit)[len(rows) - limit]
        rows = rows[rough >= bar - 1e-4 * max(1.0, float(np.abs(rough).max()))]
    keys, scores = keys[rows], _scores(vectors[rows], query, measure)
    order = np.lexsort((keys, -scores))[:limit]
    return keys[order], scores[order]


def _scores(vectors: np.ndarray, query: np.ndarray, measure: str) -> np.ndarray:
    """Score of each row, float32[N], row by row: equal vectors have equal scores to the last bit."""
    if not len(vectors):
        return np.empty(0, np.float32)
    if measure == "l2":
        away = vectors - query
        return np.asarray(-np.einsum("nd,nd->n", away, away))
    return np.asarray(np.einsum("nd,d->n", vectors, query))
