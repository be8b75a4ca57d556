"""One partition of a corpus as questions see it: its database, its dense and its lexical index, behind one face."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import numpy as np

from engine.errors import AccessDenied, InvalidInput
from engine.scope import Scope, current_scope
from operators.corpus.allowed import Allowed
from operators.corpus.content import MAX_LENGTH, check, query_vector
from operators.corpus.files import WriterLock
from operators.corpus.filter_sql import visible_to
from operators.corpus.indexes import Indexes
from operators.corpus.keys import chunk_id
from operators.corpus.listing import CollectionStatistics, count, list_chunks, list_documents
from operators.corpus.manifest import Corpus
from operators.corpus.measures import semantic_scores
from operators.corpus.reads import Reads
from operators.corpus.selection import Selections
from operators.corpus.store import Store, StoredChunk
from operators.filter_tree import EVERYTHING
from operators.messages import (
    ChunkPage,
    Document,
    DocumentPage,
    KnownVectors,
    Listing,
    Passage,
    Plan,
    Ranking,
    TermStatistics,
)

_Result = TypeVar("_Result")
_COUNTED_EVERY_S = 1.0
_QUICK_FETCH = 200  # hits
_QUICK_CHARACTERS = 20_000_000  # of a question, times the chunks that are searched for it: some milliseconds


class ShardStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard holds. `seq` numbers changes; the indexes say up to which one they have followed."""

    shard: int
    documents: int
    chunks: int
    indexed_chunks: int  # those with a vector
    tokens: int  # of its chunks, as the embedder counts them
    updated: float  # seconds since 1970 of the last change; 0 for none
    seq: int
    dense_seq: int
    dense_vectors: int
    dense_deleted: int  # in the graph and no longer found
    lexical_seq: int  # last commit
    lexical_chunks: int
    size_bytes: dict[str, int]  # files: "store", "dense", "lexical"
    text_bytes: int  # of the documents' texts, in UTF-8
    collections: dict[str, CollectionStatistics]
    notes: tuple[str, ...]  # what opening had to mend


class ShardReader:
    """What a shard answers; safe for concurrent calls.

    Every read is restricted to what the identity in the request's scope may see: documents of which they are the owner,
    or that are in one of their groups. Without an identity nothing is restricted. BM25's statistics are those of the
    whole corpus whoever asks, so scores, and scores alone, depend on documents that one may not see.

    All chunks with a vector are in both indexes. A parent chunk is found like any other if it was given a vector; one
    whose row is NaN is stored, can be fetched, and is in no index.
    """

    def __init__(self, corpus: Corpus, index: int, *, lock: WriterLock | None, threads: int) -> None:
        self._config = corpus.config
        self._index = index
        self._lock = lock
        self._closed = False
        self._folder = corpus.shard_directory(index)
        self._truth = Store(self._folder / "store.sqlite")
        self._reads = Reads(lambda: Store(self._folder / "store.sqlite"), threads, name=f"shard-{index}-read")
        self._selections = Selections()
        self._counted = -1, 0.0, 0  # epoch, when to count again, documents
        self._indexes = Indexes(self._folder, corpus.config, writable=lock is not None)
        self._indexes.open(self._truth)

    # For who puts the answers of shards together

    @property
    def epoch(self) -> int:
        """Number of the last change that answers are given with."""
        return self._indexes.dense.seq

    @property
    def weight(self) -> float:
        """Documents here, counted at most once a second when there are some, in the event loop's thread."""
        now = time.monotonic()
        if self._counted[0] != self.epoch and (now >= self._counted[1] or not self._counted[2]):
            self._counted = self.epoch, now + _COUNTED_EVERY_S, self._reads.own.documents()
        return float(self._counted[2])

    # Searching

    async def dense(self, plan: Plan, vector: np.ndarray) -> Ranking:
        """The nearest chunks to the question's vector, float32[D]; scores are described at operators/corpus/measures.

        Raises:
            InvalidInput: The vector has another dimension than the corpus or is not finite.
        """
        query = self._query(vector, plan)
        quick = self._measure(plan) == self._config.measure and self._indexes.dense.quick(_limit(plan, "dense"))
        return await self._search(plan, lambda store, scope: self._dense_leg(store, plan, query, scope), quick=quick)

    def _query(self, vector: np.ndarray, plan: Plan) -> np.ndarray:
        query = query_vector(vector, self._config.dimension, self._measure(plan))
        if query is None:
            raise InvalidInput(
                f"question vector of {np.size(vector)} numbers: expected {self._config.dimension} finite ones, "
                f"no longer than {MAX_LENGTH:g}, from the embedder {self._config.embedder!r}"
            )
        return query

    def _measure(self, plan: Plan) -> str:
        return plan.measure or self._config.measure

    def _dense_leg(self, store: Store, plan: Plan, query: np.ndarray, scope: Scope) -> Ranking:
        limit = _limit(plan, "dense")
        allowed = self._allowed(store, plan, scope)
        hits = self._indexes.dense.search(query, limit, allowed, ef_search=plan.ef_search, measure=plan.measure)
        if scope.trace is not None:
            scope.trace.note(hits.how)
        return self._ranking("dense", limit, hits.keys, hits.scores)

    async def term_statistics(self, plan: Plan) -> TermStatistics:
        """What BM25 must know of this shard's chunks to score the question's terms; see merge_statistics."""
        lexical = self._indexes.lexical
        return await self._search(
            plan, lambda *_: lexical.statistics(list(lexical.terms(plan.question))), quick=self._is_short(plan)
        )

    async def lexical(self, plan: Plan, terms: TermStatistics | None) -> Ranking:
        """The chunks that BM25 ranks first.

        Args:
            plan: Its leg "lexical" says how many.
            terms: Statistics of the whole corpus; None: this shard is all of it.
        """
        leg, quick = self._lexical_leg, self._is_short(plan)
        return await self._search(plan, lambda store, scope: leg(store, plan, terms, scope), quick=quick, beside=True)

    def _is_short(self, plan: Plan) -> bool:
        """Whether the index looks up the question in milliseconds, which its length and the index's size tell."""
        return len(plan.question) * len(self._indexes.lexical) <= _QUICK_CHARACTERS

    def _lexical_leg(self, store: Store, plan: Plan, statistics: TermStatistics | None, scope: Scope) -> Ranking:
        limit = _limit(plan, "lexical")
        hits = self._indexes.lexical.search(plan.question, statistics, limit, self._allowed(store, plan, scope))
        return self._ranking("lexical", limit, *hits)

    def _ranking(self, leg: str, limit: int, keys: np.ndarray, scores: np.ndarray) -> Ranking:
        return Ranking(leg, keys, scores, np.full(len(keys), self._index, np.int32), limit=limit)

    def _allowed(self, store: Store, plan: Plan, scope: Scope) -> Allowed | None:
        return self._selections.allowed(store, plan.filters, plan.scope_prefix, scope.identity)

    async def fetch(self, plan: Plan, vector: np.ndarray, ranking: Ranking) -> list[Passage]:
        """The passages of those hits that lie in this shard, in the ranking's order; no chunk deleted meanwhile.

        Args:
            plan: With the dense leg, passages get their semantic score to the question.
            vector: The question's, float32[D]; any without the dense leg.
            ranking: Whose hits.
        """
        query = self._query(vector, plan) if plan.leg("dense") else None
        quick = len(ranking.keys) <= _QUICK_FETCH
        return await self._search(
            plan, lambda store, scope: self._fetch(store, plan, query, ranking, scope), quick=quick
        )

    def _fetch(
        self, store: Store, plan: Plan, query: np.ndarray | None, ranking: Ranking, scope: Scope
    ) -> list[Passage]:
        places = np.flatnonzero(ranking.shards == self._index)
        keys = ranking.keys[places]
        chunks = store.chunks(keys, visible_to(scope.identity))
        semantic = {} if query is None else self._semantic(store, keys, query, self._measure(plan))
        named = zip(places.tolist(), keys.tolist(), strict=True)
        return [_passage(chunks[key], ranking, place, semantic.get(key)) for place, key in named if key in chunks]

    def _semantic(self, store: Store, keys: np.ndarray, query: np.ndarray, measure: str) -> dict[int, float]:
        """Scores of those chunks that have a vector."""
        keys, vectors = self._vectors_of(store, keys)
        scores = semantic_scores(vectors, query, measure) if len(keys) else np.empty(0, np.float32)
        return dict(zip(keys.tolist(), scores.tolist(), strict=True))

    def _vectors_of(self, store: Store, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `store.vectors`: from the dense index, which has most of them at hand, else from the database."""
        found = self._indexes.dense.stored(keys)
        return (keys, found) if len(found) == len(keys) else store.vectors(keys)

    async def vectors(self, plan: Plan, ranking: Ranking) -> np.ndarray:
        """The vectors of those hits that lie in this shard, float32[N, D], in the ranking's order."""
        quick = len(ranking.keys) <= _QUICK_FETCH
        return await self._search(plan, lambda store, scope: self._vectors(store, ranking, scope), quick=quick)

    def _vectors(self, store: Store, ranking: Ranking, scope: Scope) -> np.ndarray:
        wanted = ranking.keys[ranking.shards == self._index]
        if scope.identity is not None:
            wanted = wanted[np.isin(wanted, list(store.chunks(wanted, visible_to(scope.identity))))]
        keys, vectors_ND = self._vectors_of(store, wanted)
        row_of = {key: row for row, key in enumerate(keys.tolist())}
        rows = [row_of[key] for key in wanted.tolist() if key in row_of]
        return np.array(vectors_ND[rows], np.float32).reshape(len(rows), self._config.dimension)

    # Listing

    async def documents(self, listing: Listing) -> DocumentPage:
        """One page of the documents here; see merge_documents for several shards."""
        return await self._read(lambda store, scope: list_documents(store, listing, scope.identity))

    async def chunks(self, listing: Listing) -> ChunkPage:
        """One page of the chunks here; see merge_chunks for several shards."""
        return await self._read(lambda store, scope: list_chunks(store, listing, scope.identity))

    async def unchanged(self, documents: list[Document], chunking: str = "") -> dict[str, bool]:
        """For each document's id, whether it is stored as it is, cut in the same way: then it need not be embedded.

        Of two versions of one document each must be the stored one.

        Raises:
            InvalidInput: A document cannot be stored.
        """
        for document in documents:
            check(document)
        flags = await self._read(lambda store, scope: store.unchanged(documents, chunking, visible_to(scope.identity)))
        unchanged = dict.fromkeys((document.id for document in documents), True)
        for document, flag in zip(documents, flags, strict=True):
            unchanged[document.id] &= flag
        return unchanged

    async def known_vectors(self, hashes: list[bytes]) -> KnownVectors:
        """The vectors that are here of what has those hashes (see chunk_hash), so that it need not be embedded."""
        return await self._read(lambda store, scope: store.known_vectors(hashes, visible_to(scope.identity)))

    async def each_statistics(self) -> list[ShardStatistics]:
        """As `statistics`, in a list: lists of several shards join."""
        return [await self.statistics()]

    async def statistics(self) -> ShardStatistics:
        """What the shard holds now.

        Raises:
            AccessDenied: Someone in particular asks: they see counts of what is others'. Listings tell theirs.
        """
        return await self._read(self._statistics)

    def _statistics(self, store: Store, scope: Scope) -> ShardStatistics:
        if scope.identity is not None:
            raise AccessDenied("statistics of a whole corpus are for whoever runs it; list your documents instead")
        counts = count(store)
        return ShardStatistics(
            shard=self._index,
            documents=counts.documents,
            chunks=counts.chunks,
            indexed_chunks=counts.indexed,
            tokens=counts.tokens,
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
            text_bytes=counts.text_bytes,
            collections=counts.collections,
            notes=tuple(self._indexes.notes),
        )

    def _size_bytes(self, pattern: str) -> int:
        sizes = 0
        for path in self._folder.glob(pattern):
            with suppress(FileNotFoundError):  # Lucene has merged it away meanwhile
                sizes += path.stat().st_size
        return sizes

    async def aclose(self) -> None:
        """Saves the indexes if the shard was writable, and closes everything; calls in progress end first.

        Raises:
            StorageError: The disk refused to save the indexes; everything is closed all the same.
        """
        if not self._closed:
            self._closed = True
            await self._reads.ended()
            await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._reads.close()
        try:
            self._indexes.close(self._truth)
        finally:
            self._truth.close()
            if self._lock is not None:
                self._lock.release()

    # Threads

    async def _search(
        self, plan: Plan, work: Callable[[Store, Scope], _Result], *, quick: bool, beside: bool = False
    ) -> _Result:
        """As `_read`; quick if the work is, and chooses from all chunks, and no index has to follow first."""
        scope = current_scope()
        open_to_all = plan.filters == EVERYTHING and not plan.scope_prefix and scope.identity is None
        if not (quick and open_to_all) or self._indexes.behind(self._reads.own):
            return await self._read(work)

        def run(store: Store) -> _Result:
            scope.check()
            return work(store, scope)

        return await (self._reads.beside(run) if beside else self._reads.quick(run))

    async def _read(self, work: Callable[[Store, Scope], _Result]) -> _Result:
        scope = current_scope()

        def run(store: Store) -> _Result:
            scope.check()  # a question that was given up while it queued costs nothing
            if self._indexes.behind(store):
                self._indexes.follow(store)
            return work(store, scope)

        return await self._reads.long(run)


def _limit(plan: Plan, name: str) -> int:
    leg = plan.leg(name)
    return leg.limit if leg else 0


def _passage(chunk: StoredChunk, ranking: Ranking, place: int, semantic: float | None) -> Passage:
    ranks: dict[str, Any] = {leg: ranks[place] for leg, ranks in ranking.ranks.items() if ranks[place]}
    return Passage(
        chunk_id=chunk_id(chunk.document_id, chunk.ordinal),
        document_id=chunk.document_id,
        title=chunk.title,
        text=chunk.text,
        start=chunk.start,
        end=chunk.end,
        score=float(ranking.scores[place]),
        semantic=semantic,
        ranks=ranks,
        metadata=chunk.metadata,
        owner=chunk.owner,
        collections=chunk.collections,
        edited=chunk.edited,
    )
