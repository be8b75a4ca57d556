"""What surrounds chunking and embedding when documents come in: who is new, and which shard takes whom."""

from __future__ import annotations

from typing import Any

from operators.corpus.keys import shard_of
from operators.messages import Document, EmbeddedDocument, Written


def changed(documents: list[Document], unchanged: dict[str, bool]) -> list[Document]:
    """The documents that the corpus does not hold as they are."""
    return [d for d in documents if not unchanged[d.id]]


def report(documents: list[Document], written: list[Written]) -> list[Written]:
    """What became of each document, in their order; those that were not written are unchanged."""
    by_id = {w.document_id: w for w in written}
    return [by_id.get(d.id) or Written(d.id, "unchanged", 0) for d in documents]


def documents_by_shard(shards: int, documents: list[Document]) -> list[tuple[Any, ...] | None]:
    """Each shard's own documents; None for a shard that gets none."""
    return [(part,) if part else None for part in _parted(shards, documents, [d.id for d in documents])]


def embedded_by_shard(shards: int, documents: list[EmbeddedDocument]) -> list[tuple[Any, ...] | None]:
    """As `documents_by_shard`, for embedded ones."""
    return [(part,) if part else None for part in _parted(shards, documents, [d.document.id for d in documents])]


def _parted(shards: int, items: list[Any], ids: list[str]) -> list[list[Any]]:
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
