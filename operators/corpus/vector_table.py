"""Vectors in memory, a row each, found by key.

Shape legend: N = vectors, R = rows, D = dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

BLOCK = 1024  # rows at once: what is computed from them stays in the processor's cache
_FEW = 1024  # recent rows that are not worth sorting


class _Places(NamedTuple):
    """Where keys are: those of the rows at some moment sorted, and those of later rows by name.

    A dictionary of all would take a hundred bytes a key, and a microsecond to ask.
    """

    keys: np.ndarray  # int64 ascending
    rows: np.ndarray  # int64, theirs
    recent: dict[int, int]


class VectorTable:
    """Rows are only ever added: a vector that is replaced or removed leaves a dead row behind.

    One thread at a time may change a table. Others may read meanwhile, rows that they learnt of before: nothing that a
    row holds changes, but for its key, which is -1 once the row is dead. `rows_of` alone must not run during a change.

    Args:
        dimension: D.
        keys: int64[R], of rows that are there from the beginning; -1 for dead ones.
        vectors: float32[R, D], theirs; a view of a file will do.
    """

    def __init__(self, dimension: int, keys: np.ndarray | None = None, vectors: np.ndarray | None = None) -> None:
        nothing: np.ndarray = np.empty((0, dimension), np.float32)
        self._parts = nothing if vectors is None else vectors, nothing
        self._keys = np.empty(0, np.int64) if keys is None else keys.copy()
        self._places = _sorted(self._keys)
        self._living = len(self._places.keys)
        self.rows = len(self._keys)

    def __len__(self) -> int:
        return self._living

    @property
    def dead(self) -> int:
        """Rows that nothing finds any more."""
        return self.rows - len(self)

    @property
    def keys(self) -> np.ndarray:
        """int64[R], -1 for dead rows: a view that changes with the table."""
        return self._keys[: self.rows]

    def living_keys(self) -> np.ndarray:
        """Those that are found, int64 ascending."""
        return np.sort(self.keys[self.keys >= 0])

    # Changing

    def reserve(self, more: int) -> None:
        """Makes room for so many rows, which takes time now and then; adding them takes none."""
        first, (base, tail) = self.rows, self._parts
        if first + more > len(self._keys):
            self._keys = np.concatenate([self.keys, np.full(first + more, -1, np.int64)])
        used = first - len(base)
        if used + more > len(tail):
            grown: np.ndarray = np.empty((2 * (used + more), tail.shape[1]), np.float32)
            grown[:used] = tail[:used]
            self._parts = base, grown
        if len(self._places.recent) > max(_FEW, first // 8):
            self._places = _sorted(self.keys)

    def put(self, keys: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Adds vectors; those of the same keys, if there are any, make place.

        Args:
            keys: int64[N], each once, not negative.
            vectors: float32[N, D].

        Returns:
            Rows: the new ones int64[N], and those that died.
        """
        self.reserve(len(keys))
        dead = self.drop(keys)
        first, (base, tail) = self.rows, self._parts
        rows = np.arange(first, first + len(keys))
        tail[rows - len(base)] = vectors
        self._keys[rows] = keys
        self._places.recent.update(zip(keys.tolist(), rows.tolist(), strict=True))
        self._living += len(keys)
        self.rows += len(keys)
        return rows, dead

    def drop(self, keys: np.ndarray) -> np.ndarray:
        """Removes the vectors of those keys that are there; returns the rows that died."""
        rows = np.unique(self.rows_of(keys))  # a key may be named twice
        for key in self._keys[rows].tolist():
            self._places.recent.pop(key, None)
        self._keys[rows] = -1
        self._living -= len(rows)
        return rows

    def rebase(self, vectors: np.ndarray) -> None:
        """Takes the vectors of its rows from another place from now on, equal ones, and lets go of its own.

        Args:
            vectors: float32[R, D].
        """
        assert len(vectors) == self.rows
        self._parts = vectors, np.empty((0, vectors.shape[1]), np.float32)

    # Reading

    def rows_of(self, keys: np.ndarray) -> np.ndarray:
        """Rows of those keys that are there, int64, in the order of the keys; quickest when they are sorted."""
        places = self._places
        found = np.full(len(keys), -1)
        if len(places.keys):
            rows = places.rows[np.minimum(np.searchsorted(places.keys, keys), len(places.keys) - 1)]
            there = (self._keys[rows] == keys) & (keys >= 0)  # so it is not dead, either: dead rows have the key -1
            found[there] = rows[there]
        if places.recent:
            others = np.flatnonzero(found < 0)
            found[others] = [places.recent.get(key, -1) for key in keys[others].tolist()]
        return found[found >= 0]

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows, float32[N, D]."""
        base, tail = self._parts
        if not len(base):
            return np.asarray(tail[rows])
        early = rows < len(base)
        if early.all():
            return np.ascontiguousarray(base[rows])
        found: np.ndarray = np.empty((len(rows), base.shape[1]), np.float32)
        found[early], found[~early] = base[rows[early]], tail[rows[~early] - len(base)]
        return found

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """The vectors of the first so many rows, dead ones too, in order: float32[N, D], some at a time."""
        base, tail = self._parts
        for part in (base[:rows], tail[: max(0, rows - len(base))]):
            for start in range(0, len(part), BLOCK):
                yield part[start : start + BLOCK]

    def blocks_of(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """The vectors of those rows in their order: float32[N, D], some at a time."""
        return (self.vectors(rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK))


def _sorted(keys: np.ndarray) -> _Places:
    rows = np.argsort(keys, kind="stable")
    rows = rows[np.searchsorted(keys, 0, sorter=rows) :]  # without the dead
    return _Places(keys[rows], rows, {})
