"""Changing one chunk's text: which one is meant, what is to be embedded anew, and what is written then."""

from __future__ import annotations

import numpy as np

from engine.errors import InvalidInput
from operators.corpus.keys import parts_of_chunk_id
from operators.filter_tree import AllOf, Compare
from operators.messages import Chunk, ChunkedDocument, ChunkPage, Document, Edit, EmbeddedDocument, Listing


def listing_of_chunk(chunk_id: str) -> Listing:
    """The listing that finds one chunk.

    Raises:
        InvalidInput: The id is no chunk's.
    """
    parts = parts_of_chunk_id(chunk_id)
    if parts is None:
        raise InvalidInput(f"{chunk_id[:80]!r} is no chunk's id; expected DOCUMENT_ID#NUMBER, as searches give it")
    one = Compare("id", "$eq", parts[0]), Compare("chunk_order", "$eq", parts[1])
    return Listing(filters=AllOf(one), limit=1)


def to_embed(found: ChunkPage, text: str) -> list[ChunkedDocument]:
    """The chunk with its new text, as a document of one chunk; nothing when it is not there.

    Raises:
        InvalidInput: The text is blank.
    """
    if not text.strip():
        raise InvalidInput("a chunk's new text is blank; to remove the chunk, delete it")
    return [
        ChunkedDocument(
            Document(id=c.document_id, title=c.title, text=text),
            (Chunk(ordinal=c.ordinal, text=text, start=0, end=len(text), context=c.context),),
        )
        for c in found.chunks
    ]


def edit_of(found: ChunkPage, embedded: list[EmbeddedDocument]) -> Edit:
    """What is to be written, with the version that was read: a change in between is noticed."""
    pairs = zip(found.chunks, embedded, strict=True)
    return next((Edit(c.chunk_id, c.version, e.chunks[0].text, e.chunks[0].tokens) for c, e in pairs), Edit("", 0, ""))


def vector_of(embedded: list[EmbeddedDocument]) -> np.ndarray:
    """The new vector, float32[D]; [0] when there is nothing to embed."""
    return embedded[0].vectors[0] if embedded else np.zeros(0, np.float32)
