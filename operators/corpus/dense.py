"""The dense index of one shard: vectors by key, searched by likeness to a question's vector.

Shape legend: N = vectors, D = dimensions, K = hits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from operators.corpus.allowed import Allowed
from operators.corpus.exact import ExactIndex
from operators.corpus.hnsw import DenseIndex
from operators.corpus.manifest import CorpusConfig
from operators.corpus.scan import Hits

__all__ = ["Dense", "DenseIndex", "ExactIndex", "Hits", "open_dense"]
_OF_GRAPHS = ("cosine", "ip", "l2")


class Dense(Protocol):
    """Vectors by key, which follow the database.

    Safe from any thread. A search finds what was there when it began; each vector is replaced at once.

    Attributes:
        seq: Number of the last change followed, kept by whoever follows; 0 for an index that begins anew.
        note: What was wrong with the saved index, if anything; empty otherwise.
    """

    seq: int
    note: str

    def __len__(self) -> int:
        """Vectors that can be found."""
        ...

    @property
    def deleted(self) -> int:
        """Vectors that still take memory and are no longer found."""

    @property
    def saved_seq(self) -> int:
        """Number of the last change that need not be followed when the index is opened again."""

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Adds vectors, or puts them in the place of those with the same keys.

        Args:
            keys: int64[N], each once, not negative.
            vectors: float32[N, D].
        """

    def remove(self, keys: np.ndarray) -> None:
        """Makes vectors unfindable; unknown keys are ignored."""

    def clear(self) -> None:
        """Begins anew: empty, and `seq` is 0."""

    def search(
        self,
        query: np.ndarray,
        limit: int,
        allowed: Allowed | None = None,
        *,
        ef_search: int = 0,
        measure: str = "",
    ) -> Hits:
        """The best hits, K up to `limit`; scores are described at semantic_scores.

        Args:
            query: float32[D].
            limit: Hits wanted.
            allowed: The only keys to choose from; None for all.
            ef_search: Candidates that a walk through the graph weighs at least; 0: as the corpus says.
            measure: Another than the corpus's compares every vector, or every allowed one. Empty: the corpus's.
        """

    def quick(self, limit: int) -> bool:
        """Whether a search for so many hits, among all and by the corpus's measure, takes milliseconds only."""

    def keys(self) -> np.ndarray:
        """Keys of the vectors that can be found, int64[N] ascending."""

    def stored(self, keys: np.ndarray) -> np.ndarray:
        """The vectors of those keys that are there, in their order: float32[N, D]."""

    def save(self, *, closing: bool = False) -> None:
        """Puts the index on the disk, if enough has changed to be worth it.

        Args:
            closing: Whether the index is going to be closed, so that it is worth it sooner.

        Raises:
            OSError: The disk refused; what was saved before is still there.
        """

    def close(self) -> None:
        """Ends what goes on in the background. Saves nothing."""


def open_dense(folder: Path, config: CorpusConfig) -> Dense:
    """The dense index of the shard in that folder, as it was saved; empty if it was not, or is damaged."""
    return DenseIndex(folder, config) if config.measure in _OF_GRAPHS else ExactIndex(config)
