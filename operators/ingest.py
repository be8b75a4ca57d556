"""What surrounds chunking and embedding when documents come in: who is new, and which shard takes whom."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from operators.corpus.content import check, check_metadata, chunk_hash
from operators.corpus.keys import shard_of
from operators.messages import ChunkedDocument, Document, Edit, EmbeddedDocument, Metadata, Written


def checked(documents: list[Document]) -> list[Document]:
    """The documents, if each can be stored: what cannot may not even reach a shard.

    Raises:
        InvalidInput: One cannot; it is named.
    """
    for document in documents:
        check(document)
    return documents


def checked_metadata(document_id: str, metadata: Metadata) -> Metadata:
    """As `checked`, of metadata."""
    check_metadata(document_id, metadata)
    return metadata


def changed(documents: list[Document], unchanged: dict[str, bool]) -> list[Document]:
    """The documents that the corpus does not hold as they are."""
    return [d for d in documents if not unchanged[d.id]]


def report(documents: list[Document], written: list[Written]) -> list[Written]:
    """What became of each document, in their order, of each version of one that comes twice, too.

    Those that were not written are unchanged.
    """
    by_id: dict[str, list[Written]] = defaultdict(list)
    for one in reversed(written):
        by_id[one.document_id].append(one)
    return [by_id[d.id].pop() if by_id[d.id] else Written(d.id, "unchanged", 0) for d in documents]


def hashes_of(documents: list[ChunkedDocument]) -> list[bytes]:
    """What is to be embedded, by hash, each once."""
    return list(dict.fromkeys(chunk_hash(d.document, c) for d in documents for c in d.chunks))


def documents_by_shard(shards: int, documents: list[Document], chunking: str = "") -> list[tuple[Any, ...] | None]:
    """Each shard's own documents; None for a shard that gets none."""
    return [(part, chunking) if part else None for part in parted(shards, documents, [d.id for d in documents])]


def embedded_by_shard(
    shards: int, documents: list[EmbeddedDocument], chunking: str = ""
) -> list[tuple[Any, ...] | None]:
    """As `documents_by_shard`, for embedded ones."""
    ids = [d.document.id for d in documents]
    return [(part, chunking) if part else None for part in parted(shards, documents, ids)]


def ids_by_shard(shards: int, ids: list[str]) -> list[tuple[Any, ...] | None]:
    """Each shard's own of some document ids; None for a shard that gets none."""
    return [(part,) if part else None for part in parted(shards, ids, ids)]


def chunk_ids_by_shard(shards: int, chunk_ids: list[str]) -> list[tuple[Any, ...] | None]:
    """As `ids_by_shard`, for ids of chunks."""
    documents = [name.rpartition("#")[0] for name in chunk_ids]
    return [(part,) if part else None for part in parted(shards, chunk_ids, documents)]


def metadata_by_shard(
    shards: int,
    document_id: str,
    metadata: Metadata,
    replace: bool,
) -> list[tuple[Any, ...] | None]:
    """The arguments for the one shard that holds a document; None for the others."""
    holder = shard_of(document_id, shards)
    return [(document_id, metadata, replace) if shard == holder else None for shard in range(shards)]


def collections_by_shard(
    shards: int, ids: list[str], add: list[str], remove: list[str]
) -> list[tuple[Any, ...] | None]:
    """As `ids_by_shard`, for a change of collections."""
    return [(part, add, remove) if part else None for part in parted(shards, ids, ids)]


def edit_by_shard(shards: int, edit: Edit, vector: np.ndarray) -> list[tuple[Any, ...] | None]:
    """The arguments for the one shard that holds the edited chunk."""
    holder = shard_of(edit.chunk_id.rpartition("#")[0], shards)
    return [(edit, vector) if shard == holder else None for shard in range(shards)]


def parted(shards: int, items: list[Any], ids: list[str]) -> list[list[Any]]:
    """Each shard's own of some items that belong to documents of those ids."""
    parts: list[list[Any]] = [[] for _ in range(shards)]
    for item, id_ in zip(items, ids, strict=True):
        parts[shard_of(id_, shards)].append(item)
    return parts


def merge_flags(flags: list[dict[str, bool]]) -> dict[str, bool]:
    """The flags of all shards together."""
    return {id_: flag for part in flags for id_, flag in part.items()}


def merge_written(written: list[list[Written]]) -> list[Written]:
    """What all shards wrote."""
    return [w for part in written for w in part]
