"""The dense index of one shard for measures that HNSW knows: a graph for many vectors, an exact scan for few.

Shape legend: N = vectors, D = dimensions, K = hits.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np

from operators.corpus.allowed import Allowed
from operators.corpus.graph import Graph
from operators.corpus.manifest import CorpusConfig
from operators.corpus.measures import semantic_scores
from operators.corpus.saved_graph import load_graph, save_graph
from operators.corpus.scan import Hits, best, compare
from operators.corpus.shared_lock import SharedLock

EXACT_LIMIT = 10_000  # up to so many candidates every one is compared, which takes some milliseconds
_COMPARED_PER_WEIGHED = 10  # vectors that a scan compares in the time in which a walk weighs one
_QUICK_WALK = 1_000  # vectors weighed
_MARGIN = 2.0  # of a filtered walk: so much rarer may allowed vectors be near the query than elsewhere
_WIDER = 4
_PUT_AT_ONCE = 512  # while searches wait: a millisecond
_LINKED_AT_ONCE = 1  # while searches wait: two milliseconds at 100,000 vectors
_UNLINKED = 1_000  # at most, but for those of one call
_REBUILT_FROM = 1_000  # dead vectors
_REBUILT_AT_ONCE = 64
_SAVED_FROM = 0.01  # share of the vectors that changed; following that much again takes six times as long as saving
_SAVED_FROM_CLOSING = 0.0015  # following that much again takes as long as saving


class DenseIndex:
    """Vectors by key in a graph, see `Dense`.

    A hit has the same score whatever way found it. All candidates are compared, and the hits exact, when they are at
    most `exact_limit`, when that is quicker than walking through the graph, and when a walk meets fewer allowed ones
    than hits are wanted. A filtered walk weighs as many more candidates as the filter leaves out, and then leaves those
    out: asking Python at each step whether a vector is allowed takes three times as long, and holds up other threads.

    Two things go on in a thread of its own, and each search or change waits for one vector at most:

    - New vectors are linked: so adding some costs the same in any graph. Until then searches compare every one of
      them. Whoever adds more than it can keep up with links some, too.
    - What is replaced or removed stays in the graph as a dead vector. When these are the greater part, the living ones
      are linked anew, while this graph goes on to be searched and changed.

    Args:
        folder: Where the graph is saved.
        config: Measure, dimension and the parameters of HNSW.
        exact_limit: Up to so many candidates are compared one by one.
    """

    def __init__(self, folder: Path, config: CorpusConfig, *, exact_limit: int = EXACT_LIMIT) -> None:
        self._folder = folder
        self._config = config
        self._exact_limit = exact_limit
        self._searching = SharedLock()  # had alone while a graph changes
        self._changing = threading.Lock()  # one change, save or exchange of the graph at a time
        self._starting = threading.Lock()
        self._worker: threading.Thread | None = None
        self._closing = False
        self._graph, self.seq, self.note = load_graph(folder, config)
        self._saved_seq = self.seq
        self._unsaved = 0

    def __len__(self) -> int:
        return len(self._graph.table)

    @property
    def deleted(self) -> int:
        """Vectors that still take memory and are no longer found."""
        return self._graph.table.dead

    @property
    def saved_seq(self) -> int:
        """Number of the last change that is in the saved graph."""
        return self._saved_seq

    # Changing

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Adds vectors, or puts them in the place of those with the same keys."""
        with self._changing:
            for start in range(0, len(keys), _PUT_AT_ONCE):
                some = slice(start, start + _PUT_AT_ONCE)
                self._graph.table.reserve(len(keys[some]))
                with self._searching.alone():
                    self._graph.put(keys[some], vectors[some])
                self._link(self._graph, leaving=_UNLINKED)
            self._changed(len(keys))

    def remove(self, keys: np.ndarray) -> None:
        """Makes vectors unfindable; unknown keys are ignored."""
        with self._changing:
            with self._searching.alone():
                removed = self._graph.drop(keys)
            self._changed(removed)

    def clear(self) -> None:
        """Begins anew: empty, and `seq` is 0."""
        with self._changing:
            self._unsaved += len(self)
            self._graph = Graph(self._config)
            self.seq = 0

    def _changed(self, vectors: int) -> None:
        self._unsaved += vectors
        with self._starting:
            if self._worker is None and self._work_is_left():
                self._worker = threading.Thread(target=self._work, name="dense-index")
                self._worker.start()

    # In the thread

    def _work(self) -> None:
        try:
            while self._goes_on():
                graph = self._graph
                if len(graph.unlinked):
                    self._link_some(graph)
                else:
                    self.rebuild()
        finally:
            with self._starting:
                if self._worker is threading.current_thread():
                    self._worker = None

    def _goes_on(self) -> bool:
        with self._starting:  # so that what is added now finds the thread either at work or gone
            if not self._work_is_left():
                self._worker = None
            return self._worker is not None

    def _work_is_left(self) -> bool:
        due = self.deleted > max(_REBUILT_FROM, len(self))
        return (due or len(self._graph.unlinked) > 0) and not self._closing

    def _link(self, graph: Graph, *, leaving: int) -> None:
        while len(graph.unlinked) > leaving:
            self._link_some(graph)

    def _link_some(self, graph: Graph) -> None:
        with self._searching.alone():
            graph.link(_LINKED_AT_ONCE)

    def rebuild(self) -> None:
        """Links the living vectors anew, without the dead ones. Searches and changes go on meanwhile."""
        old, fresh, done = self._graph, Graph(self._config), 0
        origins = [np.empty(0, np.int64)]  # rows of the old graph, in the order of the fresh one's
        while (rows := old.table.rows) - done > _REBUILT_AT_ONCE:
            for start in range(done, rows, _REBUILT_AT_ONCE):
                if self._closing:
                    return
                origins.append(_copy(old, fresh, start, min(start + _REBUILT_AT_ONCE, rows)))
            done = rows
        with self._changing:
            if self._graph is not old:
                return  # it was begun anew meanwhile
            origins.append(_copy(old, fresh, done, old.table.rows))
            died = old.table.keys[np.concatenate(origins)] < 0  # after they were copied
            fresh.drop(fresh.table.keys[died])
            self._unsaved = max(self._unsaved, len(fresh.table))
            self._graph = fresh

    # Searching

    def search(
        self,
        query: np.ndarray,
        limit: int,
        allowed: Allowed | None = None,
        *,
        ef_search: int = 0,
        measure: str = "",
    ) -> Hits:
        """The best hits; see `Dense` and the class."""
        graph, own = self._graph, self._config.measure
        candidates = len(graph.table) if allowed is None else min(len(allowed.keys), len(graph.table))
        ef = max(ef_search or self._config.ef_search, limit)
        if allowed is not None and candidates:
            ef = math.ceil(ef * _MARGIN * len(graph.table) / candidates)
        walked = ""
        while measure in ("", own) and candidates > max(self._exact_limit, _COMPARED_PER_WEIGHED * ef):
            hits, met = self._walk(graph, query, limit, allowed, ef)
            if met >= limit:
                return hits
            walked = f"{hits.how} and met {met}; "
            ef *= _WIDER
        hits = compare(graph.table, query, limit, allowed, measure=measure or own, lock=self._searching)
        return hits._replace(how=walked + hits.how)

    def quick(self, limit: int) -> bool:
        """Whether a search for so many hits, among all and by the corpus's measure, takes milliseconds only."""
        return max(limit, self._config.ef_search) <= _QUICK_WALK

    def _walk(self, graph: Graph, query: np.ndarray, limit: int, allowed: Allowed | None, ef: int) -> tuple[Hits, int]:
        """The best of those that a walk meets and those that it cannot meet yet, and how many allowed ones it met."""
        table = graph.table
        with self._searching.shared():
            near, new = graph.nearest(query, ef), graph.unlinked
            rows, total = np.concatenate([near, new]) if len(new) else near, len(table)
            keys = table.keys[rows]
        how, chosen = f"walked the graph, ef {ef:,}", keys >= 0
        if allowed is not None:
            how += f", {100 * len(allowed.keys) / total:.2g} % allowed"
            chosen &= allowed.among(keys)
        if len(new):
            how += f", compared {len(new):,} new vectors"
        if not chosen.all():
            rows, keys = rows[chosen], keys[chosen]
        scores = semantic_scores(table.vectors(rows), query, self._config.measure)
        return Hits(*best(keys, scores, limit), how), int(np.count_nonzero(chosen[: len(near)]))

    # Looking inside

    def keys(self) -> np.ndarray:
        """Keys of the vectors that can be found, int64[N] ascending."""
        with self._searching.shared():
            return self._graph.table.living_keys()

    def stored(self, keys: np.ndarray) -> np.ndarray:
        """The vectors of those keys that are there, in their order: float32[N, D]."""
        with self._searching.shared():
            table = self._graph.table
            return table.vectors(table.rows_of(keys))

    # Files and threads

    def save(self, *, closing: bool = False) -> None:
        """Saves the graph if enough has changed: writing takes as long as the graph is, following does not.

        Searches wait while hnswlib writes its file, a fifth of a second for 100,000 vectors; not for the disk.
        """
        with self._changing:
            share = _SAVED_FROM_CLOSING if closing else _SAVED_FROM
            if self._graph.table.rows and self._unsaved >= max(1, share * len(self)):
                self._link(self._graph, leaving=0)
                save_graph(self._folder, self._graph, self.seq)
                self._saved_seq, self._unsaved = self.seq, 0

    def close(self) -> None:
        """Ends what goes on in the thread. Saves nothing."""
        self._closing = True
        if worker := self._worker:
            worker.join()


def _copy(old: Graph, fresh: Graph, start: int, end: int) -> np.ndarray:
    """Links what lives in those rows; returns the rows that it did, int64."""
    keys = old.table.keys[start:end].copy()
    rows = start + np.flatnonzero(keys >= 0)
    fresh.put(keys[keys >= 0], old.table.vectors(rows))
    fresh.link(len(rows))
    return rows
