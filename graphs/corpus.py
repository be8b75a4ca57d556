"""Looking after a corpus: lists, deletions, changes of metadata, collections and chunks, statistics; a graph each.

Graphs that change something need writable parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

from engine.errors import InvalidInput
from engine.graph import Graph, graph
from engine.step import Step, step
from graphs.parts import Parts
from operators.chunking import Chunker
from operators.corpus.merge import (
    cut_chunks,
    cut_documents,
    merge_chunks,
    merge_deleted,
    merge_documents,
    up_to_page,
)
from operators.corpus.reader import ShardStatistics
from operators.corpus.shard import Shard
from operators.edit import edit_of, listing_of_chunk, to_embed, vector_of
from operators.filter_parse import parse_filter
from operators.filter_tree import Filter
from operators.ingest import (
    checked_metadata,
    chunk_ids_by_shard,
    collections_by_shard,
    edit_by_shard,
    ids_by_shard,
    metadata_by_shard,
)
from operators.messages import ChunkPage, Deleted, DocumentPage, Edit, KnownVectors, Listing, Metadata
from operators.models.embedder import Embedder

_Item = TypeVar("_Item")


def stats(parts: Parts) -> Graph[[], list[ShardStatistics]]:
    """What every shard holds: one entry a shard, in shard order."""
    each = parts.shards.gather(Shard.each_statistics, joined)

    @graph
    def stats() -> list[ShardStatistics]:
        """Asks every shard what it holds."""
        return each()

    return stats


def documents(parts: Parts) -> Graph[[Listing], DocumentPage]:
    """A page of documents, newest first, then by id."""
    several = parts.profile.corpus.config.shards > 1
    found = parts.shards.gather(Shard.documents, merge_documents, split=up_to_page if several else None)
    cut = step(cut_documents)

    @graph
    def documents(listing: Listing) -> DocumentPage:
        """Lists documents."""
        page = found(listing)
        return cut(listing, page) if several else page

    return documents


def chunks(parts: Parts) -> Graph[[Listing], ChunkPage]:
    """A page of chunks, by document id, then in their order."""
    several = parts.profile.corpus.config.shards > 1
    found = parts.shards.gather(Shard.chunks, merge_chunks, split=up_to_page if several else None)
    cut = step(cut_chunks)

    @graph
    def chunks(listing: Listing) -> ChunkPage:
        """Lists chunks."""
        page = found(listing)
        return cut(listing, page) if several else page

    return chunks


def delete(parts: Parts) -> Graph[[list[str]], Deleted]:
    """Deletes documents by id; an empty list is refused, ids that are not there are reported."""
    remove, agreed = parts.shards.gather(Shard.delete, merge_deleted, split=ids_by_shard), _agreed(parts)
    some, ordered = step(some_ids), step(in_order)

    @graph
    def delete(ids: list[str]) -> Deleted:
        """Deletes documents."""
        named = some(ids)
        return ordered(named, remove(agreed(named)))

    return delete


def delete_where(parts: Parts) -> Graph[[dict[str, Any]], Deleted]:
    """Deletes the documents that pass a filter, which must say something; see operators/filter_parse.py."""
    remove, parse = parts.shards.gather(Shard.delete_where, merge_deleted), step(parsed)

    @graph
    def delete_where(filters: dict[str, Any]) -> Deleted:
        """Deletes documents that pass a filter."""
        return remove(parse(filters))

    return delete_where


def delete_chunks(parts: Parts) -> Graph[[list[str]], Deleted]:
    """Deletes chunks by id, and documents that have none left."""
    remove = parts.shards.gather(Shard.delete_chunks, merge_deleted, split=chunk_ids_by_shard)
    agreed, some, ordered = _agreed(parts, step(documents_of)), step(some_ids), step(in_order)

    @graph
    def delete_chunks(chunk_ids: list[str]) -> Deleted:
        """Deletes chunks."""
        named = some(chunk_ids)
        return ordered(named, remove(agreed(named)))

    return delete_chunks


def change_metadata(parts: Parts) -> Graph[[str, Metadata, bool], bool]:
    """Puts keys beside a document's metadata, or in its place (`replace`); False when there is no such document."""
    change, sound = parts.shards.gather(Shard.change_metadata, any, split=metadata_by_shard), step(checked_metadata)

    @graph
    def change_metadata(document_id: str, metadata: Metadata, replace: bool) -> bool:
        """Changes metadata."""
        return change(document_id, sound(document_id, metadata), replace)

    return change_metadata


def change_collections(parts: Parts) -> Graph[[list[str], list[str], list[str]], list[str]]:
    """Puts documents into collections and takes them out of others; returns the ids that are not there."""
    change = parts.shards.gather(Shard.change_collections, joined, split=collections_by_shard)
    agreed = _agreed(parts)

    @graph
    def change_collections(ids: list[str], add: list[str], remove: list[str]) -> list[str]:
        """Changes collections."""
        return change(agreed(ids), add, remove)

    return change_collections


def change_chunk(parts: Parts) -> Graph[[str, str], bool]:
    """Gives a chunk another text, which is embedded; False when there is no such chunk."""
    which, prepare, edit, vector = step(listing_of_chunk), step(to_embed), step(edit_of), step(vector_of)
    find = parts.shards.gather(Shard.chunks, merge_chunks, name="find")
    count = parts.chunker.step(Chunker.count)
    embed = parts.embedder.step(Embedder.embed_documents)
    change = parts.shards.gather(Shard.change_chunk, any, split=edit_by_shard).when(is_there, otherwise=False)
    nothing = KnownVectors([], np.zeros((0, 0), np.float32))

    @graph
    def change_chunk(chunk_id: str, text: str) -> bool:
        """Changes the text of a chunk."""
        found = find(which(chunk_id))
        embedded = embed(count(prepare(found, text)), nothing)
        return change(edit(found, embedded), vector(embedded))

    return change_chunk


def _agreed(parts: Parts, documents: Step[[list[str]], list[str]] | None = None) -> Callable[[list[str]], list[str]]:
    """Draws the ids of a change, behind a refusal for all shards if a document is someone else's; one refuses alone.

    `documents` names the documents when the ids are of something in them.
    """
    if parts.profile.corpus.config.shards == 1:
        return lambda ids: ids
    own, after = parts.shards.gather(Shard.require_own, joined, split=ids_by_shard), step(after_all)
    return lambda ids: after(ids, own(documents(ids) if documents else ids))


def after_all(ids: list[str], _: list[str]) -> list[str]:
    """The ids, when every shard has agreed."""
    return ids


def documents_of(chunk_ids: list[str]) -> list[str]:
    """The documents whose chunks those are, each once."""
    return list(dict.fromkeys(name.rpartition("#")[0] for name in chunk_ids))


def joined(parts: list[list[_Item]]) -> list[_Item]:
    """Lists of all shards, in shard order."""
    return [item for part in parts for item in part]


def some_ids(ids: list[str]) -> list[str]:
    """The ids.

    Raises:
        InvalidInput: There are none.
    """
    if not ids:
        raise InvalidInput("nothing is named to be deleted; give at least one id")
    return ids


def in_order(ids: list[str], deleted: Deleted) -> Deleted:
    """With the missing ids in the order in which they were given, each once."""
    missing = set(deleted.missing)
    return msgspec.structs.replace(deleted, missing=tuple(i for i in dict.fromkeys(ids) if i in missing))


def parsed(filters: dict[str, Any]) -> Filter:
    """The filter as a tree."""
    return parse_filter(filters)


def is_there(edit: Edit, *_: Any) -> bool:
    """Whether the chunk was found."""
    return bool(edit.chunk_id)
