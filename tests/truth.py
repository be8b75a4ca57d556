"""Corpora without indexes for tests of what is done with their databases, and what those databases say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from operators.corpus.changes import Changes
from operators.corpus.manifest import Corpus, CorpusConfig, create_corpus
from operators.corpus.store import Store
from operators.messages import Chunk, Document, Edit, EmbeddedDocument

CONFIG = CorpusConfig(embedder="test", dimension=4)


def document(
    id_: str, *parts: str, owner: str = "", collections: tuple[str, ...] = (), **metadata: Any
) -> EmbeddedDocument:
    """A document of some chunks, with the vectors that their texts seed."""
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    chunks = tuple(
        Chunk(ordinal=n, text=part, start=start, end=start + len(part), context="Heading", tokens=n + 1)
        for n, (part, start) in enumerate(zip(parts, starts, strict=False))
    )
    whole = Document(
        id=id_, title=f"Title of {id_}", text="".join(parts), source=f"/files/{id_}", media_type="text/markdown",
        metadata=metadata, owner=owner, collections=collections,
    )  # fmt: skip
    return EmbeddedDocument(whole, chunks, np.array([vector_of(part) for part in parts], np.float32).reshape(-1, 4))


def vector_of(text: str) -> np.ndarray:
    """Four numbers of unit length that depend on the text only; for "nowhere", which no index is to have, NaN."""
    if text == "nowhere":
        return np.full(4, np.nan, np.float32)
    vector = np.random.default_rng(list(text.encode())).standard_normal(4).astype(np.float32)
    return vector / np.linalg.norm(vector)


def corpus_of(folder: Path, *documents: EmbeddedDocument, shards: int = 1, config: CorpusConfig = CONFIG) -> Corpus:
    """A corpus whose databases hold the documents."""
    import msgspec

    corpus = create_corpus(folder, msgspec.structs.replace(config, shards=shards))
    for shard in range(shards):
        mine = [d for d in documents if corpus.shard_of(d.document.id) == shard]
        change(corpus, shard, lambda changes, mine=mine: changes.write(mine, "cut so"))
    return corpus


def change(corpus: Corpus, shard: int, work: Callable[[Changes], Any]) -> Any:
    """Carries out changes of one shard in a transaction."""
    store = Store(corpus.shard_directory(shard) / "store.sqlite")
    try:
        store.db.execute("BEGIN IMMEDIATE")
        result = work(Changes(store, None))
        store.db.execute("COMMIT")
        return result
    finally:
        store.close()


def edit(corpus: Corpus, chunk_id: str, version: int, text: str) -> None:
    """Gives a chunk another text."""
    shard = corpus.shard_of(chunk_id.rpartition("#")[0])
    assert change(
        corpus, shard, lambda changes: changes.change_chunk(Edit(chunk_id, version, text, 7), vector_of(text))
    )


_SAID = (
    "SELECT d.id, d.version, d.created, d.updated, d.content_hash, d.title, t.text, d.source, d.media_type, d.owner,"
    " d.size_bytes, d.metadata, (SELECT group_concat(collection) FROM memberships WHERE document = d.number),"
    ' c.key, c.ordinal, c.parent, c.start, c."end", c.tokens, c.edited, c.indexed, c.content_hash, c.context, c.text,'
    " v.vector FROM documents d JOIN texts t ON t.document = d.number LEFT JOIN chunks c ON c.document = d.number"
    " LEFT JOIN vectors v ON v.key = c.key"
)


def truth_of(corpus: Corpus) -> list[tuple[Any, ...]]:
    """Everything that a corpus says of its documents and chunks, whatever shards they are in."""
    rows: list[tuple[Any, ...]] = []
    for shard in range(corpus.config.shards):
        store = Store(corpus.shard_directory(shard) / "store.sqlite")
        rows += store.db.execute(_SAID).fetchall()
        store.close()
    return sorted(rows, key=lambda row: (row[0], row[14] if row[14] is not None else -1))


def ids_of(rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """Ids of the documents, each once, in order."""
    return list(dict.fromkeys(row[0] for row in rows))
