"""An HNSW graph over the rows of a vector table, and the file that holds both.

Shape legend: N = vectors, R = rows, D = dimensions, K = hits.

Source of the algorithm: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs", 2018, as implemented in hnswlib.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from operators.corpus.manifest import CorpusConfig
from operators.corpus.vector_table import VectorTable

_HEADER = struct.Struct("<6QiI3QdQ")  # of hnswlib's files, see saveIndex in its hnswalg.h
_FIRST_ROOM = 1024


class Graph:
    """Vectors by key. No thread may search it while another changes it; several may search it at once.

    A row of the table is a label of hnswlib, used once. So a vector that is replaced is marked as deleted and its
    successor linked anew: hnswlib could change a vector in place, which costs more and loses neighbours. hnswlib hands
    out vectors slowly, one Python number each, and the table has them already.

    What is put in is found by `nearest` only when it is linked, which takes longer the larger the graph is.

    Args:
        config: Measure, dimension and the parameters of HNSW.
        keys: int64[R], of the rows in the file; -1 for dead ones.
        file: Holds the links and the vectors. Without it, the graph is empty.

    Raises:
        ValueError: The file holds something else.
    """

    def __init__(self, config: CorpusConfig, *, keys: np.ndarray | None = None, file: Path | None = None) -> None:
        import hnswlib  # noqa: PLC0415 - only a shard needs it

        self._config = config
        self._links: Any = hnswlib.Index("l2" if config.measure == "l2" else "ip", config.dimension)
        if file is None or keys is None:
            self.table = VectorTable(config.dimension)
            self._links.init_index(_FIRST_ROOM, M=config.m, ef_construction=config.ef_construction)
        else:
            self.table = VectorTable(config.dimension, keys, _vectors(file, len(keys), config))
            self._links.load_index(str(file))
        self._linked = self.table.rows
        self._living = len(self.table)  # of those that are linked

    def put(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Adds vectors; those of the same keys, if there are any, make place.

        Args:
            keys: int64[N], each once, not negative.
            vectors: float32[N, D].
        """
        _, dead = self.table.put(keys, vectors)
        self._bury(dead)

    def drop(self, keys: np.ndarray) -> int:
        """Makes vectors unfindable; returns how many of the keys were there."""
        dead = self.table.drop(keys)
        self._bury(dead)
        return len(dead)

    def _bury(self, rows: np.ndarray) -> None:
        linked = rows[rows < self._linked].tolist()
        for row in linked:
            self._links.mark_deleted(row)
        self._living -= len(linked)

    @property
    def unlinked(self) -> np.ndarray:
        """Rows that are still to be linked, int64 ascending."""
        return np.arange(self._linked, self.table.rows)

    def link(self, most: int) -> None:
        """Links the next rows, dead ones too: rows lie in the file in their order."""
        rows = self.unlinked[:most]
        if not len(rows):
            return  # hnswlib fails on none
        if rows[-1] >= self._links.get_max_elements():
            self._links.resize_index(2 * (int(rows[-1]) + 1))
        self._links.add_items(self.table.vectors(rows), rows, num_threads=1)  # one thread keeps the order
        self._linked += len(rows)
        self._living += len(rows)
        self._bury(rows[self.table.keys[rows] < 0])

    def nearest(self, query: np.ndarray, ef: int) -> np.ndarray:
        """Rows of `ef` linked vectors near the query, int64[ef], or of all if there are fewer.

        None when hnswlib reaches fewer.
        """
        try:
            # hnswlib weighs the larger of k and its own ef, which is 10 and is not to be set by several threads.
            found, _ = self._links.knn_query(query, k=min(ef, self._living), num_threads=1)
        except RuntimeError:  # what it says when it reaches fewer than k
            return np.empty(0, np.int64)
        return np.asarray(found[0].astype(np.int64))

    @property
    def size_bytes(self) -> int:
        """Size of the file that `save` writes."""
        return int(self._links.index_file_size())

    def save(self, file: Path) -> None:
        """Writes the file; all must be linked. hnswlib lets no other Python thread run meanwhile."""
        assert self._linked == self.table.rows
        self._links.save_index(str(file))

    def lean_on(self, file: Path) -> None:
        """Reads vectors from the file just saved from now on, so that there are not two of each in memory."""
        self.table.rebase(_vectors(file, self.table.rows, self._config))


def _vectors(file: Path, rows: int, config: CorpusConfig) -> np.ndarray:
    """The vectors in a file of hnswlib's, float32[R, D], in the order of rows: a view of the file.

    Raises:
        ValueError: The file is laid out otherwise, or for other vectors.
    """
    links = 4 * (2 * config.m + 1)
    size = links + 4 * config.dimension + 8
    with file.open("rb") as opened:
        header = opened.read(_HEADER.size)
    if len(header) < _HEADER.size or _HEADER.unpack(header)[2:6] != (rows, size, size - 8, links):
        raise ValueError(f"{file.name} holds no {rows:,} vectors of {config.dimension} dimensions")
    fields = {"vector": ((np.float32, config.dimension), links), "label": (np.uint64, size - 8)}
    row = np.dtype({
        "names": list(fields), "formats": [f for f, _ in fields.values()], "offsets": [o for _, o in fields.values()],
        "itemsize": size,
    })  # fmt: skip
    mapped = np.memmap(file, row, "r", offset=_HEADER.size, shape=(rows,))
    if not np.array_equal(mapped["label"], np.arange(rows)):
        raise ValueError(f"{file.name} has its vectors in another order")
    return np.asarray(mapped["vector"])
