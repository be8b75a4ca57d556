"""Ingest: documents become searchable; those that the corpus already holds as they are cost nothing.

::

    documents -> unchanged -> changed -> chunk -> embed_documents -> write -> report
"""

from __future__ import annotations

from engine.graph import Graph, graph
from engine.step import step
from graphs.parts import Parts
from operators.chunking import Chunker
from operators.corpus.shard import Shard
from operators.ingest import changed, documents_by_shard, embedded_by_shard, merge_flags, merge_written, report
from operators.messages import Document, Written
from operators.models.embedder import Embedder


def ingest(parts: Parts) -> Graph[[list[Document]], list[Written]]:
    """The ingest graph; its parts must be writable. A batch is written whole or not at all, shard by shard."""
    unchanged = parts.shards.gather(Shard.unchanged, merge_flags, split=documents_by_shard)
    write = parts.shards.gather(Shard.write, merge_written, split=embedded_by_shard)
    chunk, embed = parts.chunker.step(Chunker.chunk), parts.embedder.step(Embedder.embed_documents)
    fresh, told = step(changed), step(report)

    @graph
    def ingest(documents: list[Document]) -> list[Written]:
        """Adds documents to a corpus, or replaces them."""
        new = fresh(documents, unchanged(documents))
        return told(documents, write(embed(chunk(new))))

    return ingest


def commit(parts: Parts) -> Graph[[], None]:
    """The graph that ends an ingest: every shard saves its indexes."""
    save = parts.shards.gather(Shard.commit, lambda _: None)

    @graph
    def commit() -> None:
        """Saves the indexes of every shard."""
        return save()

    return commit
