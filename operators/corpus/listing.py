"""What a shard holds, as lists and as counts."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from engine.scope import Identity
from operators.corpus.filter_sql import Condition
from operators.corpus.keys import chunk_id
from operators.corpus.selection import condition_of
from operators.corpus.store import COLLECTIONS, Store
from operators.messages import ChunkInfo, ChunkPage, DocumentInfo, DocumentPage, Listing

_DOCUMENT = (
    f"d.id, d.title, d.source, d.media_type, d.metadata, d.owner, {COLLECTIONS}, d.version, d.created, d.updated,"
    " d.size_bytes, (SELECT count(*) FROM chunks WHERE document = d.number),"
    " (SELECT coalesce(sum(tokens), 0) FROM chunks WHERE document = d.number)"
)
_CHUNK = (
    'd.id, d.title, d.version, c.ordinal, c.parent, c.start, c."end", c.context, c.text, c.tokens,'
    f" c.edited, d.metadata, d.owner, {COLLECTIONS}"
)


class CollectionStatistics(msgspec.Struct, frozen=True):
    """What one collection holds."""

    documents: int
    chunks: int
    tokens: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a shard's truth; `updated` is the time of the last change in seconds since 1970, 0 for none."""

    documents: int
    chunks: int
    indexed: int
    tokens: int
    text_bytes: int
    updated: float
    collections: dict[str, CollectionStatistics]


def list_documents(store: Store, listing: Listing, identity: Identity | None) -> DocumentPage:
    """One page of documents, newest first, then by id. A filter on chunks lets documents with such a chunk through."""
    condition = _of_documents(condition_of(listing.filters, listing.scope_prefix, identity))
    rows = store.db.execute(
        f"SELECT {_DOCUMENT} FROM documents d WHERE {condition.sql} ORDER BY d.created DESC, d.id LIMIT ? OFFSET ?",
        (*condition.parameters, listing.limit, listing.offset),
    )
    total = store.one(f"SELECT count(*) FROM documents d WHERE {condition.sql}", *condition.parameters)
    return DocumentPage([_document(row) for row in rows], total)


def _of_documents(condition: Condition) -> Condition:
    if not condition.of_chunks:
        return condition
    sql = f"EXISTS (SELECT 1 FROM chunks c WHERE c.document = d.number AND ({condition.sql}))"
    return Condition(sql, condition.parameters, of_chunks=False)


def _document(row: tuple[Any, ...]) -> DocumentInfo:
    id_, title, source, media_type, metadata, owner, collections, *rest = row
    version, created, updated, size_bytes, chunks, tokens = rest
    return DocumentInfo(
        id=id_,
        title=title,
        source=source,
        media_type=media_type,
        metadata=msgspec.json.decode(metadata),
        owner=owner,
        collections=tuple(msgspec.json.decode(collections)),
        version=version,
        created=created,
        updated=updated,
        size_bytes=size_bytes,
        chunks=chunks,
        tokens=tokens,
    )


def list_chunks(store: Store, listing: Listing, identity: Identity | None) -> ChunkPage:
    """One page of chunks, by document id, then in their order."""
    condition = condition_of(listing.filters, listing.scope_prefix, identity)
    tables = "documents d JOIN chunks c ON c.document = d.number"
    vector = ", v.vector" if listing.include_vectors else ", NULL"
    joined = " LEFT JOIN vectors v ON v.key = c.key" if listing.include_vectors else ""
    rows = store.db.execute(
        f"SELECT {_CHUNK}{vector} FROM {tables}{joined} WHERE {condition.sql}"
        " ORDER BY d.id, c.ordinal LIMIT ? OFFSET ?",
        (*condition.parameters, listing.limit, listing.offset),
    )
    total = store.one(f"SELECT count(*) FROM {tables} WHERE {condition.sql}", *condition.parameters)
    return ChunkPage([_chunk(row) for row in rows], total)


def _chunk(row: tuple[Any, ...]) -> ChunkInfo:
    document_id, title, version, ordinal, parent, start, end, *rest = row
    context, text, tokens, edited, metadata, owner, collections, vector = rest
    return ChunkInfo(
        chunk_id=chunk_id(document_id, ordinal),
        document_id=document_id,
        title=title,
        version=version,
        ordinal=ordinal,
        parent=parent,
        start=start,
        end=end,
        context=context,
        text=text,
        tokens=tokens,
        edited=bool(edited),
        metadata=msgspec.json.decode(metadata),
        owner=owner,
        collections=tuple(msgspec.json.decode(collections)),
        vector=None if vector is None else np.frombuffer(vector, np.float32),
    )


def count(store: Store) -> Counts:
    """How much is stored."""
    documents, text_bytes = store.db.execute("SELECT count(*), coalesce(sum(size_bytes), 0) FROM documents").fetchone()
    chunks, indexed, tokens = store.db.execute(
        "SELECT count(*), coalesce(sum(indexed), 0), coalesce(sum(tokens), 0) FROM chunks"
    ).fetchone()
    return Counts(
        documents=documents,
        chunks=chunks,
        indexed=indexed,
        tokens=tokens,
        text_bytes=text_bytes,
        updated=store.one("SELECT updated FROM state"),
        collections=_collections(store),
    )


def _collections(store: Store) -> dict[str, CollectionStatistics]:
    rows = store.db.execute(
        "SELECT m.collection, count(*), coalesce(sum(n.chunks), 0), coalesce(sum(n.tokens), 0) FROM memberships m"
        " LEFT JOIN (SELECT document, count(*) AS chunks, sum(tokens) AS tokens FROM chunks GROUP BY document) n"
        " USING (document) GROUP BY m.collection ORDER BY m.collection"
    )
    return {name: CollectionStatistics(documents, chunks, tokens) for name, documents, chunks, tokens in rows}
