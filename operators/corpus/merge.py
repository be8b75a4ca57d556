"""Puts together what the shards of a corpus answer, so that their number shows nowhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from operators.corpus.keys import key_of_chunk_id
from operators.messages import (
    MAX_LISTED,
    ChunkPage,
    Deleted,
    DocumentPage,
    KnownVectors,
    Listing,
    Passage,
    Ranking,
    TermStatistics,
)


def merge_rankings(rankings: Sequence[Ranking]) -> Ranking:
    """One leg's ranking over all shards: score descending, then key ascending, cut to the limit that was asked for.

    >>> import numpy as np
    >>> one = Ranking("dense", np.array([7, 5]), np.float32([0.9, 0.1]), np.array([0, 0]), limit=2)
    >>> two = Ranking("dense", np.array([6]), np.float32([0.9]), np.array([1]), limit=2)
    >>> merge_rankings([one, two]).keys.tolist()
    [6, 7]
    """
    if len(rankings) == 1:
        return rankings[0]
    keys = np.concatenate([r.keys for r in rankings] or [np.empty(0)]).astype(np.int64)
    scores = np.concatenate([r.scores for r in rankings] or [np.empty(0)]).astype(np.float32)
    shards = np.concatenate([r.shards for r in rankings] or [np.empty(0)]).astype(np.int32)
    limit = max((r.limit for r in rankings), default=0)
    order = np.lexsort((keys, -scores))[: limit or None]
    leg = rankings[0].leg if rankings else ""
    return Ranking(leg, keys[order], scores[order], shards[order], limit=limit)


def merge_statistics(statistics: Sequence[TermStatistics]) -> TermStatistics:
    """The statistics of the whole corpus: sums over its shards."""
    return TermStatistics(
        _sum(s.document_count for s in statistics),
        _sum(s.token_count for s in statistics),
        _sum_by_field(s.document_frequency for s in statistics),
        _sum_by_field(s.term_frequency for s in statistics),
    )


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _sum_by_field(counts: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    by_field: dict[str, list[dict[str, int]]] = {}
    for field, count in chain.from_iterable(c.items() for c in counts):
        by_field.setdefault(field, []).append(count)
    return {field: _sum(many) for field, many in by_field.items()}


def merge_vectors(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The vectors that the shards gave, float32[N, D], shard by shard; [0, 0] when none was asked."""
    return np.concatenate(vectors) if vectors else np.zeros((0, 0), np.float32)


def merge_passages(passages: Sequence[list[Passage]]) -> list[Passage]:
    """The passages that the shards fetched for one ranking, in its order: score descending, then key ascending."""
    return sorted(chain.from_iterable(passages), key=lambda p: (-(p.score or 0.0), key_of_chunk_id(p.chunk_id)))


def merge_known(known: Sequence[KnownVectors]) -> KnownVectors:
    """The vectors that any shard has, one a hash."""
    found = {h: v for part in known for h, v in zip(part.hashes, part.vectors, strict=True)}
    return KnownVectors(list(found), np.array(list(found.values()), np.float32))


def merge_deleted(deleted: Sequence[Deleted]) -> Deleted:
    """What all shards deleted; ids that were missing by shard."""
    missing = tuple(chain.from_iterable(d.missing for d in deleted))
    return Deleted(sum(d.documents for d in deleted), sum(d.chunks for d in deleted), missing)


def up_to_page(shards: int, listing: Listing) -> list[tuple[Any, ...] | None]:
    """What each shard is asked for one page of all of them: everything up to its end."""
    end = min(listing.offset + listing.limit, MAX_LISTED)
    return [(msgspec.structs.replace(listing, offset=0, limit=end),)] * shards


def cut_documents(listing: Listing, found: DocumentPage) -> DocumentPage:
    """The page that was asked for, of what `merge_documents` joined."""
    return DocumentPage(found.documents[listing.offset :][: listing.limit], found.total)


def cut_chunks(listing: Listing, found: ChunkPage) -> ChunkPage:
    """The page that was asked for, of what `merge_chunks` joined."""
    return ChunkPage(found.chunks[listing.offset :][: listing.limit], found.total)


def merge_documents(pages: Sequence[DocumentPage]) -> DocumentPage:
    """Documents of all shards, newest first, then by id."""
    documents = sorted(chain.from_iterable(p.documents for p in pages), key=lambda d: (-d.created, d.id))
    return DocumentPage(documents, sum(p.total for p in pages))


def merge_chunks(pages: Sequence[ChunkPage]) -> ChunkPage:
    """Chunks of all shards, by document id, then in their order."""
    chunks = sorted(chain.from_iterable(p.chunks for p in pages), key=lambda c: (c.document_id, c.ordinal))
    return ChunkPage(chunks, sum(p.total for p in pages))
