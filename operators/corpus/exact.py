"""The dense index of one shard for measures that no graph knows: it compares every vector."""

from __future__ import annotations

import threading

import numpy as np

from operators.corpus.allowed import Allowed
from operators.corpus.manifest import CorpusConfig
from operators.corpus.scan import Hits, compare
from operators.corpus.shared_lock import SharedLock
from operators.corpus.vector_table import VectorTable

_QUICK_SCAN = 10_000  # vectors
_PACKED_FROM = 1_000  # dead rows


class ExactIndex:
    """Vectors by key in memory, see `Dense`. Nothing is saved: it follows the database from the beginning when opened.

    Args:
        config: Measure and dimension.
    """

    def __init__(self, config: CorpusConfig) -> None:
        self._config = config
        self._table = VectorTable(config.dimension)
        self._searching = SharedLock()
        self._changing = threading.Lock()
        self.seq = 0
        self.note = ""

    def __len__(self) -> int:
        return len(self._table)

    @property
    def deleted(self) -> int:
        """Vectors that still take memory and are no longer found."""
        return self._table.dead

    @property
    def saved_seq(self) -> int:
        """Whatever was removed up to now may be forgotten: who begins anew needs only what is there."""
        return self.seq

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Adds vectors, or puts them in the place of those with the same keys."""
        with self._changing:
            self._table.reserve(len(keys))
            with self._searching.alone():
                self._table.put(keys, vectors)
            self._pack()

    def remove(self, keys: np.ndarray) -> None:
        """Makes vectors unfindable; unknown keys are ignored."""
        with self._changing:
            with self._searching.alone():
                self._table.drop(keys)
            self._pack()

    def _pack(self) -> None:
        """Lets go of dead rows once they are the greater part."""
        table = self._table
        if table.dead <= max(_PACKED_FROM, len(table)):
            return
        living = np.flatnonzero(table.keys >= 0)
        packed = VectorTable(self._config.dimension)
        packed.put(table.keys[living], table.vectors(living))
        self._table = packed

    def clear(self) -> None:
        """Begins anew: empty, and `seq` is 0."""
        with self._changing:
            self._table = VectorTable(self._config.dimension)
            self.seq = 0

    def search(
        self,
        query: np.ndarray,
        limit: int,
        allowed: Allowed | None = None,
        *,
        ef_search: int = 0,
        measure: str = "",
    ) -> Hits:
        """The best hits, exact; `ef_search` says nothing here."""
        measure = measure or self._config.measure
        return compare(self._table, query, limit, allowed, measure=measure, lock=self._searching)

    def quick(self, limit: int) -> bool:
        """Whether a search for so many hits, among all and by the corpus's measure, takes milliseconds only."""
        return len(self) + limit <= _QUICK_SCAN

    def keys(self) -> np.ndarray:
        """Keys of the vectors that can be found, int64[N] ascending."""
        with self._searching.shared():
            return self._table.living_keys()

    def stored(self, keys: np.ndarray) -> np.ndarray:
        """The vectors of those keys that are there, in their order: float32[N, D]."""
        with self._searching.shared():
            return self._table.vectors(self._table.rows_of(keys))

    def save(self, *, closing: bool = False) -> None:
        """Saves nothing."""

    def close(self) -> None:
        """Ends nothing."""
