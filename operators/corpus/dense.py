"""The dense index of one shard: HNSW for many vectors, an exact scan for few.

Shape legend: D = dimensions, K = hits.

Source of the algorithm: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs", 2018, as implemented in hnswlib.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from operators.corpus.files import publish, write_whole
from operators.corpus.filters import Allowed
from operators.corpus.manifest import CorpusConfig
from operators.corpus.scan import VectorTable, best

EXACT_LIMIT = 10_000  # up to so many candidates every one is compared, which takes two milliseconds at 384 dimensions
_ADD_AT_ONCE = 32  # vectors linked while searches wait

VectorSource = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class _Saved(msgspec.Struct, frozen=True):
    """Describes the saved graph; written after it, so a description always has its graph."""

    seq: int
    file: str
    size_bytes: int
    crc32: int
    deleted: list[int]


class DenseIndex:
    """Vectors by key. Safe from any thread; searches wait while a few vectors are being linked.

    Scores are cosine similarity (-1 to 1), inner product, or the negated squared distance, so more is always better.
    They are the same to the last bit whatever path found the hit. Cosine expects vectors of unit length.

    Args:
        folder: Where the graph is saved.
        config: Measure, dimension and the parameters of HNSW.
        exact_limit: Up to so many candidates are compared one by one.
    """

    def __init__(self, folder: Path, config: CorpusConfig, *, exact_limit: int = EXACT_LIMIT) -> None:
        import hnswlib  # noqa: PLC0415 - only a shard needs it

        self._folder = folder
        self._config = config
        self._exact_limit = exact_limit
        self._graph = hnswlib.Index("l2" if config.measure == "l2" else "ip", config.dimension)
        self._deleted: set[int] = set()
        self._table: VectorTable | None = None  # made by the first scan
        self._lock = threading.Lock()
        self._unsaved = 0
        self.seq = 0
        self.note = ""
        if not self._load():
            self._graph.init_index(1024, M=config.m, ef_construction=config.ef_construction)
        self._graph.set_num_threads(1)

    # Changing

    def __len__(self) -> int:
        return int(self._graph.get_current_count()) - len(self._deleted)

    @property
    def deleted(self) -> int:
        """Vectors that are still in the graph and no longer found."""
        return len(self._deleted)

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Adds vectors, or puts them in the place of those with the same keys."""
        for start in range(0, len(keys), _ADD_AT_ONCE):
            some = slice(start, start + _ADD_AT_ONCE)
            with self._lock:
                self._make_room(len(keys[some]))
                self._graph.add_items(vectors[some], keys[some].astype(np.uint64), num_threads=1)
                self._deleted.difference_update(keys[some].tolist())
                if self._table is not None:
                    self._table.put(keys[some], vectors[some])
        self._unsaved += len(keys)
        if len(self) > self._exact_limit:
            self._table = None

    def _make_room(self, more: int) -> None:
        needed = self._graph.get_current_count() + more
        if needed > self._graph.get_max_elements():
            self._graph.resize_index(max(needed, 2 * self._graph.get_max_elements()))

    def remove(self, keys: np.ndarray) -> None:
        """Makes vectors unfindable; unknown keys are ignored."""
        with self._lock:
            there = set(keys.tolist()) & set(self._graph.get_ids_list()) - self._deleted if len(keys) else set()
            for key in there:
                self._graph.mark_deleted(key)
                if self._table is not None:
                    self._table.drop(key)
            self._deleted |= there
        self._unsaved += len(there)

    # Searching

    def search(
        self, query: np.ndarray, limit: int, allowed: Allowed | None = None, *, vectors: VectorSource
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best hits: keys int64[K] and scores float32[K], score descending, then key ascending; K up to `limit`.

        Exact when the candidates (all vectors, or those that the filter allows) are at most `exact_limit`.

        Args:
            query: float32[D].
            limit: Hits wanted.
            allowed: The only keys to choose from; None for all.
            vectors: Reads the vectors of those keys that still have one; hnswlib itself hands them out slowly.
        """
        if allowed is not None and len(allowed.keys) == 0:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        if len(self) <= self._exact_limit:
            return self._scan(query, limit, allowed, vectors)
        if allowed is not None and len(allowed.keys) <= self._exact_limit:
            candidates = allowed.keys
        else:
            candidates = self._walk(query, limit, allowed)
        return best(*vectors(candidates), query, limit=limit, measure=self._config.measure)

    def _scan(
        self, query: np.ndarray, limit: int, allowed: Allowed | None, vectors: VectorSource
    ) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:
            if self._table is None:
                living = set(self._graph.get_ids_list()) - self._deleted
                self._table = VectorTable(*vectors(np.array(sorted(living), np.int64)))
            table = self._table
            only = None if allowed is None else np.isin(table.keys, allowed.keys, assume_unique=True)
            return best(table.keys, table.vectors, query, limit=limit, measure=self._config.measure, only=only)

    def _walk(self, query: np.ndarray, limit: int, allowed: Allowed | None) -> np.ndarray:
        """Keys of candidates that the graph finds near the question, int64, at least as many as hits are wanted."""
        width = max(self._config.ef_search, limit)
        options: dict[str, Any] = {"num_threads": 1}
        if allowed is not None:
            width *= 2  # the graph is built for all vectors, so a filtered walk is given more breadth
            options["filter"] = allowed.members.__contains__
        with self._lock:
            self._graph.set_ef(width)
            wanted = min(width, len(self) if allowed is None else len(allowed.keys))
            while wanted:
                try:
                    return np.asarray(self._graph.knn_query(query, k=wanted, **options)[0][0].astype(np.int64))
                except RuntimeError:  # what hnswlib says when it reaches fewer than that
                    wanted //= 2
        return np.empty(0, np.int64)

    # Saving

    def save(self) -> None:
        """Saves the graph if enough has changed to be worth it: writing is as long as the graph, following is not."""
        if self._unsaved < max(1, len(self) // 100):
            return
        seq, name = self.seq, f"dense-{self.seq}.hnsw"
        unfinished = self._folder / f"{name}.unfinished"
        with self._lock:
            self._graph.save_index(str(unfinished))
            deleted = sorted(self._deleted)
        size_bytes, crc32 = _checksum(unfinished)
        publish(unfinished, self._folder / name)
        write_whole(self._folder / "dense.json", msgspec.json.encode(_Saved(seq, name, size_bytes, crc32, deleted)))
        self._unsaved = 0
        for old in self._folder.glob("dense-*"):
            if old.name != name:
                old.unlink()

    def _load(self) -> bool:
        described = self._folder / "dense.json"
        if not described.exists():
            return False
        try:
            saved = msgspec.json.decode(described.read_bytes(), type=_Saved)
            path = self._folder / saved.file
            if _checksum(path) != (saved.size_bytes, saved.crc32):
                self.note = f"{path.name} is damaged"
                return False
        except (msgspec.DecodeError, OSError) as error:
            self.note = f"the saved dense index cannot be read ({error})"
            return False
        self._graph.load_index(str(path))
        self._deleted = set(saved.deleted)
        self.seq = saved.seq
        return True


def _checksum(path: Path) -> tuple[int, int]:
    size, crc = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc
