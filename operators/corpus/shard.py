"""One partition of a corpus at work: its database, its dense and its lexical index, behind one face.

Writes go to the database first and are on the disk when `write` returns; the indexes follow it. A shard that is opened
and finds an index behind, torn or missing lets it follow from wherever it is, and says so in its statistics.
"""

from __future__ import annotations

import asyncio
import queue
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import numpy as np

from engine.errors import InvalidInput
from engine.scope import current_scope
from operators.corpus.content import check, normalised, prepared
from operators.corpus.files import WriterLock
from operators.corpus.filters import Allowed
from operators.corpus.indexes import Indexes
from operators.corpus.keys import chunk_id
from operators.corpus.manifest import Corpus, open_corpus
from operators.corpus.store import Store, StoredChunk
from operators.messages import Document, EmbeddedDocument, Passage, Plan, Ranking, TermStatistics, Written

_Result = TypeVar("_Result")
_FILTERS_KEPT = 16


class ShardStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard holds. `seq` numbers changes; the indexes say up to which one they have followed."""

    shard: int
    documents: int
    chunks: int
    indexed_chunks: int  # those with a vector
    updated: float  # seconds since 1970 of the last change; 0 for none
    seq: int
    dense_seq: int
    dense_vectors: int
    dense_deleted: int  # in the graph and no longer found
    lexical_seq: int  # last commit
    lexical_chunks: int
    size_bytes: dict[str, int]  # "store", "dense", "lexical"
    notes: tuple[str, ...]  # what opening had to mend


class Shard:
    """The state of a retriever stage: open one in a process of its own. Built by `open`, safe for concurrent calls.

    All chunks with a vector are in both indexes. A parent chunk is found like any other if it was given a vector; one
    whose row is NaN is stored, can be fetched, and is in no index.
    """

    def __init__(self, corpus: Corpus, index: int, *, lock: WriterLock | None, threads: int) -> None:
        self._config = corpus.config
        self._index = index
        self._lock = lock
        self._folder = corpus.shard_directory(index)
        self._truth = Store(self._folder / "store.sqlite")
        self._readers: queue.SimpleQueue[Store] = queue.SimpleQueue()
        for _ in range(threads):
            self._readers.put(Store(self._folder / "store.sqlite"))
        self._filters: OrderedDict[bytes, Allowed] = OrderedDict()
        self._reading = ThreadPoolExecutor(threads, thread_name_prefix=f"shard-{index}-read")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix=f"shard-{index}-write")
        self._indexes = Indexes(self._folder, corpus.config, writable=lock is not None)
        self._indexes.open(self._truth)

    @classmethod
    def open(cls, directory: str, index: int, *, writable: bool = False, threads: int = 2) -> Shard:
        """Opens a shard and lets its indexes follow the database; takes a second, or as long as there is to follow.

        Args:
            directory: The corpus's.
            index: The shard, from 0.
            writable: Whether documents will be written or deleted; one open shard at a time may.
            threads: Reads served at once.

        Raises:
            InvalidInput: No such corpus or shard; or `writable`, and someone else writes.
        """
        corpus = open_corpus(directory)
        folder = corpus.shard_directory(index)
        folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder) if writable else None
        try:
            return cls(corpus, index, lock=lock, threads=threads)
        except BaseException:
            if lock:
                lock.release()
            raise

    # Searching

    async def dense(self, plan: Plan, vector: np.ndarray) -> Ranking:
        """The nearest chunks to the question's vector, float32[D]; scores are described at DenseIndex.

        Raises:
            InvalidInput: The vector has another dimension than the corpus or is not finite, or a filter is malformed.
        """
        query = np.asarray(vector, np.float32).reshape(-1)
        if query.shape != (self._config.dimension,) or not np.isfinite(query).all():
            raise InvalidInput(
                f"question vector of {query.size} numbers: expected {self._config.dimension} finite ones, from the "
                f"embedder {self._config.embedder!r}"
            )
        if self._config.measure == "cosine":
            query = normalised(query)
        return await self._read(lambda store: self._dense_leg(store, plan, query))

    def _dense_leg(self, store: Store, plan: Plan, query: np.ndarray) -> Ranking:
        leg = plan.leg("dense")
        limit = leg.limit if leg else 0
        hits = self._indexes.dense.search(query, limit, self._allowed(store, plan), vectors=store.vectors)
        return self._ranking("dense", limit, *hits)

    async def term_statistics(self, plan: Plan) -> TermStatistics:
        """What BM25 must know of this shard's chunks to score the question's terms; see merge_statistics."""
        return await self._read(
            lambda _: self._indexes.lexical.statistics(list(self._indexes.lexical.terms(plan.question)))
        )

    async def lexical(self, plan: Plan, terms: TermStatistics | None) -> Ranking:
        """The chunks that BM25 ranks first.

        Args:
            plan: Its leg "lexical" says how many.
            terms: Statistics of the whole corpus; None: this shard is all of it.

        Raises:
            InvalidInput: A filter is malformed.
        """
        return await self._read(lambda store: self._lexical_leg(store, plan, terms))

    def _lexical_leg(self, store: Store, plan: Plan, statistics: TermStatistics | None) -> Ranking:
        leg = plan.leg("lexical")
        limit = leg.limit if leg else 0
        terms = self._indexes.lexical.terms(plan.question)
        statistics = statistics or self._indexes.lexical.statistics(list(terms))
        hits = self._indexes.lexical.search(terms, statistics, limit, self._allowed(store, plan))
        return self._ranking("lexical", limit, *hits)

    def _ranking(self, leg: str, limit: int, keys: np.ndarray, scores: np.ndarray) -> Ranking:
        return Ranking(leg, keys, scores, np.full(len(keys), self._index, np.int32), limit=limit)

    def _allowed(self, store: Store, plan: Plan) -> Allowed | None:
        """The keys that the plan's filters let through, remembered until the next change: both legs ask for them."""
        if not plan.filters and not plan.scope_prefix:
            return None
        name = msgspec.json.encode((store.seq(), plan.filters, plan.scope_prefix), order="sorted")
        found = self._filters.get(name)
        if found is None:
            found = self._filters[name] = Allowed(store.allowed(plan.filters, plan.scope_prefix))
            while len(self._filters) > _FILTERS_KEPT:
                self._filters.popitem(last=False)
        return found

    async def fetch(self, ranking: Ranking) -> list[Passage]:
        """The passages of those hits that lie in this shard, in the ranking's order; no chunk deleted meanwhile."""
        return await self._read(lambda store: self._fetch(store, ranking))

    def _fetch(self, store: Store, ranking: Ranking) -> list[Passage]:
        places = np.flatnonzero(ranking.shards == self._index).tolist()
        chunks = store.chunks(ranking.keys[places])
        found = ((place, chunks.get(int(ranking.keys[place]))) for place in places)
        return [_passage(chunk, ranking, place) for place, chunk in found if chunk is not None]

    async def vectors(self, plan: Plan, ranking: Ranking) -> np.ndarray:
        """The vectors of those hits that lie in this shard, float32[N, D], in the ranking's order."""
        return await self._read(lambda store: self._vectors(store, ranking))

    def _vectors(self, store: Store, ranking: Ranking) -> np.ndarray:
        wanted = ranking.keys[ranking.shards == self._index]
        keys, vectors_ND = store.vectors(wanted)
        order = {key: row for row, key in enumerate(keys.tolist())}
        rows = [order[key] for key in wanted.tolist() if key in order]
        return np.ascontiguousarray(vectors_ND[rows], np.float32).reshape(len(rows), self._config.dimension)

    # Writing

    async def unchanged(self, documents: list[Document]) -> dict[str, bool]:
        """For each document's id, whether it is stored with the same title, text and metadata, so need not be embedded.

        Raises:
            InvalidInput: A document cannot be stored.
        """
        for document in documents:
            check(document)
        flags = await self._read(lambda store: store.unchanged(documents))
        return {document.id: flag for document, flag in zip(documents, flags, strict=True)}

    async def write(self, documents: list[EmbeddedDocument]) -> list[Written]:
        """Adds or replaces documents, all or none; they are on the disk and found by searches when this returns.

        Until then the old version of a replaced document answers. A call cancelled while it writes is carried out.

        Raises:
            InvalidInput: The shard was opened for reading, or a document does not fit the corpus; nothing was written.
        """
        return await self._write(lambda: self._write_documents(documents))

    def _write_documents(self, documents: list[EmbeddedDocument]) -> list[Written]:
        config = self._config
        ready = [prepared(d, dimension=config.dimension, measure=config.measure) for d in documents]
        written = self._truth.write(ready)
        self._indexes.follow(self._truth)
        return written

    async def delete(self, ids: list[str]) -> list[str]:
        """Deletes documents, durably and at once; returns the ids that are not here.

        Raises:
            InvalidInput: The shard was opened for reading.
        """
        return await self._write(lambda: self._delete(ids))

    def _delete(self, ids: list[str]) -> list[str]:
        missing = self._truth.delete(ids)
        self._indexes.follow(self._truth)
        return missing

    async def commit(self) -> None:
        """Saves the indexes, so that the next opening need not let them follow and readers elsewhere see the changes.

        Raises:
            InvalidInput: The shard was opened for reading.
        """
        await self._write(self._indexes.commit)

    # Threads

    async def _read(self, work: Callable[[Store], _Result]) -> _Result:
        scope = current_scope()

        def run() -> _Result:
            scope.check()  # a question that was given up while it queued costs nothing
            with self._reader() as store:
                if self._indexes.behind(store):
                    self._indexes.follow(store)
                return work(store)

        return await asyncio.get_running_loop().run_in_executor(self._reading, run)

    @contextmanager
    def _reader(self) -> Iterator[Store]:
        store = self._readers.get()
        try:
            yield store
        finally:
            self._readers.put(store)

    async def _write(self, work: Callable[[], _Result]) -> _Result:
        if self._lock is None:
            raise InvalidInput(f"{self._folder} was opened for reading; open it with writable=True to change it")
        return await asyncio.get_running_loop().run_in_executor(self._writing, work)

    async def each_statistics(self) -> list[ShardStatistics]:
        """As `statistics`, in a list: lists of several shards join."""
        return [await self.statistics()]

    async def statistics(self) -> ShardStatistics:
        """What the shard holds now."""
        return await self._read(self._statistics)

    def _statistics(self, store: Store) -> ShardStatistics:
        counts = store.counts()
        return ShardStatistics(
            shard=self._index,
            documents=counts.documents,
            chunks=counts.chunks,
            indexed_chunks=counts.indexed,
            updated=counts.updated,
            seq=store.seq(),
            dense_seq=self._indexes.dense.seq,
            dense_vectors=len(self._indexes.dense),
            dense_deleted=self._indexes.dense.deleted,
            lexical_seq=self._indexes.lexical.seq,
            lexical_chunks=len(self._indexes.lexical),
            size_bytes={
                "store": self._size_bytes("store.sqlite*"),
                "dense": self._size_bytes("dense*"),
                "lexical": self._size_bytes("lexical/*"),
            },
            notes=tuple(self._indexes.notes),
        )

    def _size_bytes(self, pattern: str) -> int:
        return sum(path.stat().st_size for path in self._folder.glob(pattern))

    async def aclose(self) -> None:
        """Saves the indexes if the shard was writable, and closes everything; calls in progress end first."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._close)

    def _close(self) -> None:
        self._reading.shutdown()
        self._writing.shutdown()
        try:
            self._indexes.close()
        finally:
            while not self._readers.empty():
                self._readers.get().close()
            self._truth.close()
            if self._lock is not None:
                self._lock.release()


def _passage(chunk: StoredChunk, ranking: Ranking, place: int) -> Passage:
    ranks: dict[str, Any] = {leg: ranks[place] for leg, ranks in ranking.ranks.items() if ranks[place]}
    return Passage(
        chunk_id=chunk_id(chunk.document_id, chunk.ordinal),
        document_id=chunk.document_id,
        title=chunk.title,
        text=chunk.text,
        start=chunk.start,
        end=chunk.end,
        score=float(ranking.scores[place]),
        ranks=ranks,
        metadata=chunk.metadata,
    )
