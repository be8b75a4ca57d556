"""Ingest: documents become searchable; those that the corpus already holds as they are cost nothing.

::

    documents -> checked -> unchanged -> changed -> chunk -> hashes_of -> known_vectors -> embed_documents -> write
              -> report

A batch is written whole or not at all, shard by shard, and is on the disk when the graph answers. Running it again does
what is left to do: what was written is unchanged, and what was embedded is known.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from engine.graph import Graph, graph
from engine.step import step
from graphs.parts import Parts
from operators.chunking import Chunker
from operators.corpus.merge import merge_known
from operators.corpus.shard import Shard
from operators.ingest import (
    changed,
    checked,
    documents_by_shard,
    embedded_by_shard,
    hashes_of,
    merge_flags,
    merge_written,
    report,
)
from operators.messages import ChunkedDocument, Document, EmbeddedDocument, KnownVectors, Written
from operators.models.embedder import Embedder, EmbedderStatistics

_NOTHING_KNOWN = KnownVectors([], np.empty((0, 0), np.float32))


def _are_any(items: list[Any], *_: Any) -> bool:
    return bool(items)


def ingest(parts: Parts) -> Graph[[list[Document]], list[Written]]:
    """The ingest graph; its parts must be writable."""
    cut_new, embed_new, write_all = cut(parts), embed(parts), write(parts)
    told = step(report)

    @graph
    def ingest(documents: list[Document]) -> list[Written]:
        """Adds documents to a corpus, or replaces them."""
        return told(documents, write_all(embed_new(cut_new(documents))))

    return ingest


def cut(parts: Parts) -> Graph[[list[Document]], list[ChunkedDocument]]:
    """The first third of `ingest`: documents that the corpus does not hold as they are, in chunks."""
    unchanged = parts.shards.gather(Shard.unchanged, merge_flags, split=documents_by_shard)
    chunk = parts.chunker.step(Chunker.chunk).when(_are_any, otherwise=[])
    sound, fresh, chunking = step(checked), step(changed), _chunking(parts)

    @graph
    def cut(documents: list[Document]) -> list[ChunkedDocument]:
        """Cuts what is new."""
        storable = sound(documents)
        return chunk(fresh(storable, unchanged(storable, chunking)))

    return cut


def embed(parts: Parts) -> Graph[[list[ChunkedDocument]], list[EmbeddedDocument]]:
    """The second third: a vector for every chunk, made only where no shard has one of the same content."""
    known = parts.shards.gather(Shard.known_vectors, merge_known).when(_are_any, otherwise=_NOTHING_KNOWN)
    vectors = parts.embedder.step(Embedder.embed_documents).when(_are_any, otherwise=[])
    hashes = step(hashes_of)

    @graph
    def embed(documents: list[ChunkedDocument]) -> list[EmbeddedDocument]:
        """Embeds what is not known."""
        return vectors(documents, known(hashes(documents)))

    return embed


def write(parts: Parts) -> Graph[[list[EmbeddedDocument]], list[Written]]:
    """The last third: documents go to their shards."""
    store = parts.shards.gather(Shard.write, merge_written, split=embedded_by_shard).when(_are_any, otherwise=[])
    chunking = _chunking(parts)

    @graph
    def write(documents: list[EmbeddedDocument]) -> list[Written]:
        """Writes what was embedded."""
        return store(documents, chunking)

    return write


def _chunking(parts: Parts) -> str:
    """Names the chunker's configuration: a document that was cut otherwise is not unchanged."""
    return msgspec.json.encode(parts.profile.chunks).decode()


def commit(parts: Parts) -> Graph[[], None]:
    """The graph that ends an ingest, and comes now and then during a long one: every shard saves its indexes."""
    save = parts.shards.gather(Shard.commit, lambda _: None)

    @graph
    def commit() -> None:
        """Saves the indexes of every shard."""
        return save()

    return commit


def embedder_counters(parts: Parts) -> Graph[[], EmbedderStatistics]:
    """The graph that tells what the embedder has done."""
    count = parts.embedder.step(Embedder.counters)

    @graph
    def embedder_counters() -> EmbedderStatistics:
        """Asks the embedder."""
        return count()

    return embedder_counters
