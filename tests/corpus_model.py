"""A corpus as a plain dictionary of rows, and what hypothesis does to it: documents, changes, filters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np

from engine.scope import Identity
from operators.corpus.content import passage_hash
from operators.corpus.keys import chunk_id, chunk_key
from operators.filter_tree import Filter
from operators.messages import Chunk, ChunkInfo, Document, DocumentInfo, Edit, EmbeddedDocument
from tests.filter_model import matches
from tests.operators.corpus.conftest import DIMENSION, vector_of

IDS = ["a/1", "a/2", "b", "b#1", "b#1#0", "文/三", "%"]
WORDS = [letter * 3 for letter in "bdfghjklmn"]  # that no analyzer cuts or stems
GROUPS = ["g1", "g2", 'a "group"']
PEOPLE = ["", "ann", "bob"]

words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(lambda some: "fox " + " ".join(some) + " ")
metadata = st.dictionaries(
    st.sampled_from(["n", "kind", "tags", "deep", "a.b"]),
    st.one_of(st.integers(0, 2), st.sampled_from(["x", "y"]), st.none(), st.lists(st.sampled_from(["x", 1])),
              st.just({"n": 1}), st.booleans()),
    max_size=3,
)  # fmt: skip
groups = st.lists(st.sampled_from(GROUPS), unique=True, max_size=2)
some_ids = st.lists(st.sampled_from([*IDS, "nowhere"]), min_size=1, max_size=3)
ordinals = st.integers(0, 3)


@st.composite
def documents(draw: st.DrawFn) -> EmbeddedDocument:
    """A document of up to three chunks, perhaps with a parent that is stored and in no index."""
    parts = draw(st.lists(words, max_size=3))
    text, start, chunks = "".join(parts), 0, []
    nested = len(parts) > 1 and draw(st.booleans())
    if nested:
        chunks.append(Chunk(ordinal=0, text=text, start=0, end=len(text), tokens=len(text.split())))
    context = draw(st.sampled_from(["", "Heading"]))
    for part in parts:
        chunks.append(Chunk(ordinal=len(chunks), text=part, start=start, end=start + len(part), context=context,
                            parent=0 if nested else None, tokens=len(part.split())))  # fmt: skip
        start += len(part)
    document = Document(id=draw(st.sampled_from(IDS)), title=draw(st.sampled_from(["", "Title"])), text=text,
                        owner=draw(st.sampled_from(PEOPLE)), collections=tuple(draw(groups)),
                        metadata=draw(metadata))  # fmt: skip
    vectors = np.full((len(chunks), DIMENSION), np.nan, np.float32)
    for row, chunk in enumerate(chunks):
        if not (nested and row == 0):
            vectors[row] = vector_of(chunk.text)
    return EmbeddedDocument(document, tuple(chunks), vectors)


fields = st.sampled_from(["n", "kind", "tags", "deep.n", "deep", "nothing", "metadata.a"])
values = st.one_of(st.integers(0, 2), st.sampled_from(["x", "y"]), st.none(), st.booleans())
comparisons = st.one_of(
    st.tuples(fields, values),
    st.tuples(fields, st.fixed_dictionaries({"$ne": values})),
    st.tuples(fields, st.fixed_dictionaries({"$gte": st.integers(0, 2)})),
    st.tuples(fields, st.fixed_dictionaries({"$nin": st.lists(values, max_size=2)})),
    st.tuples(fields, st.fixed_dictionaries({"$exists": st.booleans()})),
    st.tuples(st.just("id"), st.fixed_dictionaries({"$in": some_ids})),
    st.tuples(st.just("owner"), st.sampled_from(PEOPLE)),
    st.tuples(st.just("collections"), st.fixed_dictionaries({"$overlap": groups})),
    st.tuples(st.just("version"), st.fixed_dictionaries({"$gt": st.integers(0, 2)})),
)
of_chunks = st.one_of(
    st.tuples(st.just("text"), st.fixed_dictionaries({"$contains": st.sampled_from(WORDS)})),
    st.tuples(st.just("chunk_order"), ordinals),
)


def filters_of(leaves: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.recursive(
        leaves.map(lambda leaf: dict([leaf])),
        lambda more: st.one_of(
            st.lists(more, max_size=2).map(lambda parts: {"$or": parts}),
            st.lists(more, min_size=1, max_size=2).map(lambda parts: {"$and": parts}),
            more.map(lambda part: {"$not": part}),
        ),
        max_leaves=3,
    )


@dataclass
class Row:
    """What the dictionary knows of a document; its chunks are by ordinal."""

    document: Document
    chunking: str
    chunks: dict[int, Chunk]
    indexed: set[int]
    version: int = 1
    edited: set[int] = field(default_factory=set)
    as_ingested: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
    collections: set[str] = field(default_factory=set)

    def view(self, ordinal: int | None = None) -> dict[str, Any]:
        """What filters look at."""
        d = self.document
        of_document = {"id": d.id, "title": d.title, "source": "", "media_type": d.media_type, "owner": d.owner,
                       "collections": sorted(self.collections), "version": self.version,
                       "metadata": self.metadata}  # fmt: skip
        if ordinal is None:
            return of_document
        chunk = {"chunk_id": chunk_id(d.id, ordinal), "chunk_order": ordinal, "text": self.chunks[ordinal].text}
        return {**of_document, **chunk}

    def hashes(self) -> dict[bytes, str]:
        """What an embedder has seen of it, and the text of each."""
        chunks = (self.chunks[n] for n in self.indexed)
        return {passage_hash(self.document.title, c.context, c.text): c.text for c in chunks}

    def tokens(self) -> int:
        """Of its chunks."""
        return sum(c.tokens for c in self.chunks.values())

    def visible_to(self, person: Identity | None) -> bool:
        """Whether someone may see it."""
        return person is None or self.document.owner == person.user or bool(self.collections & set(person.groups))

    def chunk_info(self, ordinal: int) -> ChunkInfo:
        """What a list says of a chunk, without its vector."""
        chunk, document = self.chunks[ordinal], self.document
        return ChunkInfo(
            chunk_id=chunk_id(document.id, ordinal), document_id=document.id, title=document.title,
            version=self.version, ordinal=ordinal, parent=chunk.parent, start=chunk.start, end=chunk.end,
            context=chunk.context, text=chunk.text, tokens=chunk.tokens, edited=ordinal in self.edited,
            metadata=self.metadata, owner=document.owner, collections=tuple(sorted(self.collections)),
        )  # fmt: skip

    def document_info(self, *, created: float, updated: float) -> DocumentInfo:
        """What a list says of it."""
        document = self.document
        return DocumentInfo(
            id=document.id, title=document.title, source=document.source, media_type=document.media_type,
            metadata=self.metadata, owner=document.owner, collections=tuple(sorted(self.collections)),
            version=self.version, created=created, updated=updated, size_bytes=len(document.text.encode()),
            chunks=len(self.chunks), tokens=self.tokens(),
        )  # fmt: skip

    def visible_chunks(self, filters: Filter) -> list[int]:
        """Ordinals of the chunks that pass."""
        return [n for n in self.chunks if matches(filters, self.view(n))]

    def change_chunk(self, edit: Edit, ordinal: int) -> None:
        """Gives a chunk another text."""
        self.chunks[ordinal] = msgspec.structs.replace(self.chunks[ordinal], text=edit.text, tokens=edit.tokens)
        self.edited.add(ordinal)
        self.indexed.add(ordinal)
        self._is_another_version()

    def forget_chunk(self, ordinal: int) -> None:
        """Takes a chunk away; its children have no parent then."""
        del self.chunks[ordinal]
        self.indexed.discard(ordinal)
        self.edited.discard(ordinal)
        for n, chunk in self.chunks.items():
            if chunk.parent == ordinal:
                self.chunks[n] = msgspec.structs.replace(chunk, parent=None)
        self._is_another_version()

    def _is_another_version(self) -> None:
        self.version, self.as_ingested = self.version + 1, False

    def is_as(self, document: Document, chunking: str) -> bool:
        """Whether writing that would change nothing."""
        return self.as_ingested and (self.document, self.chunking) == (document, chunking)


Rows = dict[str, Row]


def row_of(embedded: EmbeddedDocument, chunking: str, old: Row | None) -> Row:
    """What a write stores in the place of what was there."""
    has_vector = ~np.isnan(embedded.vectors).any(axis=1)
    return Row(
        document=embedded.document,
        chunking=chunking,
        chunks={c.ordinal: c for c in embedded.chunks},
        indexed={c.ordinal for c, there in zip(embedded.chunks, has_vector, strict=True) if there},
        version=old.version + 1 if old else 1,
        metadata=embedded.document.metadata,
        collections=set(embedded.document.collections),
    )


def passing(
    rows: Rows, filters: Filter, prefix: str = "", person: Identity | None = None
) -> dict[tuple[str, int], Row]:
    """Every chunk that a read may see, by document and ordinal."""
    seen = (r for id, r in rows.items() if id.startswith(prefix) and r.visible_to(person))
    return {(r.document.id, n): r for r in seen for n in r.visible_chunks(filters)}


def findable(rows: Rows, *condition: Any) -> dict[int, str]:
    """Those of them that searches find: text by key."""
    chunks = passing(rows, *condition).items()
    return {chunk_key(id, n): r.chunks[n].text for (id, n), r in chunks if n in r.indexed}
