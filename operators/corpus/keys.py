"""Names of chunks and the placing of documents over shards, by a hash that is the same on every machine and run."""

from __future__ import annotations

import hashlib

from operators.messages import ChunkKey


def chunk_key(document_id: str, ordinal: int) -> ChunkKey:
    """The 63-bit key of a chunk: its key in the database and in both indexes, so ties break alike on any shard count.

    Two of 100 million chunks collide with a probability of 0.05 %; the database refuses the second.

    >>> chunk_key("guide.md", 0)
    8884488563002481179
    """
    digest = hashlib.blake2b(f"{document_id}\0{ordinal}".encode(), digest_size=8).digest()
    return ChunkKey(int.from_bytes(digest, "big") >> 1)


def chunk_id(document_id: str, ordinal: int) -> str:
    """The name of a chunk that people see: `DOCUMENT_ID#ORDINAL`."""
    return f"{document_id}#{ordinal}"


def key_of_chunk_id(name: str) -> ChunkKey:
    """The key of the chunk of that name."""
    document_id, _, ordinal = name.rpartition("#")
    return chunk_key(document_id, int(ordinal))


def shard_of(document_id: str, shards: int) -> int:
    """The shard, 0 to `shards` - 1, that holds a document.

    >>> shard_of("guide.md", 5)
    4
    """
    digest = hashlib.blake2b(document_id.encode(), digest_size=8, person=b"shard").digest()
    return int.from_bytes(digest, "big") % shards
