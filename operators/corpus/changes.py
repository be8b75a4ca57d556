"""Every way in which the truth of a shard changes; each call is one step of a transaction that the caller holds."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from engine.errors import AccessDenied, InvalidInput
from engine.scope import Identity
from operators.corpus.content import chunk_hash, content_hash, passage_hash
from operators.corpus.filter_sql import Condition, both, visible_to
from operators.corpus.keys import chunk_key, parts_of_chunk_id
from operators.corpus.store import Store
from operators.messages import Chunk, Deleted, Document, Edit, EmbeddedDocument, Metadata, Written


class Changes:
    """Changes to one shard by whoever asks.

    What the asking person may not see is treated as absent; what they may see and do not own is refused.

    Args:
        store: A connection in a transaction.
        identity: Who asks; None may change everything.
    """

    def __init__(self, store: Store, identity: Identity | None) -> None:
        self._store = store
        self._db = store.db
        self._identity = identity

    # Documents

    def write(self, documents: Sequence[EmbeddedDocument], chunking: str) -> list[Written]:
        """Adds or replaces documents.

        The vectors are stored as they come; a chunk whose row is NaN is stored without one and is in no index.
        """
        return [self._write(document, chunking) for document in documents]

    def _write(self, embedded: EmbeddedDocument, chunking: str) -> Written:
        document = self._owned(embedded.document)
        digest, now = content_hash(embedded.document, chunking), time.time()
        sql = "SELECT number, content_hash, owner FROM documents WHERE id = ?"
        number, known, owner = self._db.execute(sql, (document.id,)).fetchone() or (None, b"", "")
        if number is not None:
            self._refuse_unless_mine(document.id, owner)
        if number is not None and known == digest:
            return Written(document.id, "unchanged", 0)
        seq = self._next_seq()
        size = len(document.text.encode())
        row = (seq, seq, digest, now, document.title, document.source, document.media_type, document.owner, size,
               _json(document.metadata))  # fmt: skip
        if number is not None:
            self._db.execute(
                "UPDATE documents SET seq = ?, touched = ?, version = version + 1, content_hash = ?, updated = ?,"
                " title = ?, source = ?, media_type = ?, owner = ?, size_bytes = ?, metadata = ? WHERE number = ?",
                (*row, number),
            )
            self._db.execute("DELETE FROM memberships WHERE document = ?", (number,))
        else:
            cursor = self._db.execute(
                "INSERT INTO documents (seq, touched, content_hash, updated, title, source, media_type, owner,"
                " size_bytes, metadata, id, created, version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
                (*row, document.id, now),
            )
            assert cursor.lastrowid is not None
            number = cursor.lastrowid
            self._db.execute("DELETE FROM removed_documents WHERE id = ?", (document.id,))
        self._db.execute("INSERT OR REPLACE INTO texts VALUES (?, ?)", (number, document.text))
        self._db.executemany("INSERT INTO memberships VALUES (?, ?)", ((c, number) for c in document.collections))
        self._put_chunks(embedded, number, seq)
        return Written(document.id, "replaced" if known else "added", len(embedded.chunks))

    def _owned(self, document: Document) -> Document:
        """The document with its owner, which is whoever writes it unless that is the operator."""
        if self._identity is None:
            return document
        if not self._identity.user:
            raise AccessDenied(f"document {document.id!r}: whoever asks has no name, so cannot own what they write")
        if document.owner not in ("", self._identity.user):
            raise AccessDenied(
                f"document {document.id!r} names the owner {document.owner!r}; "
                f"{self._identity.user!r} may write documents of their own only"
            )
        self._refuse_foreign_groups(document.collections)
        return msgspec.structs.replace(document, owner=self._identity.user)

    def _refuse_foreign_groups(self, collections: Iterable[str]) -> None:
        foreign = sorted(set(collections) - set(self._identity.groups)) if self._identity else []
        if foreign and self._identity:
            raise AccessDenied(f"{self._identity.user!r} does not belong to the collection {foreign[0]!r}")

    def _refuse_unless_mine(self, document_id: str, owner: str) -> None:
        if self._identity is not None and owner != (self._identity.user or None):
            raise AccessDenied(f"document {document_id!r} belongs to someone else; only its owner may change it")

    def _put_chunks(self, embedded: EmbeddedDocument, number: int, seq: int) -> None:
        """Chunks in the place of the document's old ones.

        One that an embedder would see alike keeps its vector and its sequence number: the dense index has nothing to
        follow.
        """
        document = embedded.document
        sql = "SELECT key, content_hash, seq FROM chunks WHERE document = ? AND indexed"
        old = {key: (digest, since) for key, digest, since in self._db.execute(sql, (number,))}
        rows, vectors = [], []
        for chunk, vector in zip(embedded.chunks, embedded.vectors, strict=True):
            key, digest, indexed = (
                chunk_key(document.id, chunk.ordinal),
                chunk_hash(document, chunk),
                not _is_nan(vector),
            )
            known, since = old.pop(key, (b"", 0)) if indexed else (b"", 0)
            if indexed and known != digest:
                vectors.append((key, vector.tobytes()))
            rows.append(_chunk_row(chunk, key, digest, number, since if known == digest else seq, indexed=indexed))
        self._forget_keys(old, seq)
        self._db.execute("DELETE FROM chunks WHERE document = ?", (number,))
        try:
            self._db.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            raise InvalidInput(
                f"document {document.id!r}: a chunk's key is taken, by the same ordinal twice or by another document "
                "(63-bit hashes may collide, if hardly ever); give the document another id"
            ) from error
        self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", vectors)
        self._db.executemany("DELETE FROM removed_chunks WHERE key = ?", ((row[0],) for row in rows))

    def _forget_keys(self, keys: Iterable[int], seq: int) -> None:
        """Takes chunks out of both indexes."""
        keys = list(keys)
        self._db.executemany("DELETE FROM vectors WHERE key = ?", ((key,) for key in keys))
        self._db.executemany("INSERT OR REPLACE INTO removed_chunks VALUES (?, ?)", ((key, seq) for key in keys))

    def delete(self, ids: Sequence[str]) -> Deleted:
        """Deletes documents; ids that are not there, or may not be seen, are reported."""
        numbers, missing = [], []
        for document_id in dict.fromkeys(ids):
            number = self._mine(document_id)
            if number is None:
                missing.append(document_id)
            else:
                numbers.append(number)
        return self._delete_numbers(numbers, tuple(missing))

    def delete_where(self, condition: Condition) -> Deleted:
        """Deletes the documents that pass, of those that the asking person owns."""
        mine = Condition("TRUE", [])
        if self._identity is not None:
            mine = Condition("d.owner = ?", [self._identity.user or None])  # nobody's documents are not mine
        wanted = both(condition, mine)
        rows = self._db.execute(f"SELECT d.number FROM documents d WHERE {wanted.sql}", wanted.parameters)
        return self._delete_numbers([row[0] for row in rows])

    def _delete_numbers(self, numbers: list[int], missing: tuple[str, ...] = ()) -> Deleted:
        chunks = self._count_chunks(numbers)
        for number in numbers:
            seq = self._next_seq()
            keys = [row[0] for row in self._db.execute("SELECT key FROM chunks WHERE document = ?", (number,))]
            self._forget_keys(keys, seq)
            self._db.execute(
                "INSERT OR REPLACE INTO removed_documents SELECT id, ? FROM documents WHERE number = ?", (seq, number)
            )
            for table, column in (("chunks", "document"), ("texts", "document"), ("memberships", "document"),
                                  ("documents", "number")):  # fmt: skip
                self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))
        return Deleted(len(numbers), chunks, missing)

    def change_metadata(self, document_id: str, metadata: Metadata, *, replace: bool) -> bool:
        """Puts keys beside the document's metadata, or in its place; False when there is no such document."""
        number = self._mine(document_id)
        if number is None:
            return False
        if not replace:
            stored = self._store.one("SELECT metadata FROM documents WHERE number = ?", number)
            metadata = {**msgspec.json.decode(stored), **metadata}
        self._db.execute("UPDATE documents SET metadata = ? WHERE number = ?", (_json(metadata), number))
        self._touch(number)
        return True

    def change_collections(self, ids: Sequence[str], *, add: Sequence[str], remove: Sequence[str]) -> list[str]:
        """Puts documents into collections and takes them out of others; returns the ids that are not there."""
        self._refuse_foreign_groups([*add, *remove])
        missing = []
        for document_id in dict.fromkeys(ids):
            number = self._mine(document_id)
            if number is None:
                missing.append(document_id)
                continue
            self._db.executemany("INSERT OR IGNORE INTO memberships VALUES (?, ?)", ((c, number) for c in add))
            self._db.executemany(
                "DELETE FROM memberships WHERE collection = ? AND document = ?", ((c, number) for c in remove)
            )
            self._touch(number)
        return missing

    # Chunks

    def change_chunk(self, edit: Edit, vector: np.ndarray) -> bool:
        """Gives a chunk another text and vector; False when there is no such chunk.

        Raises:
            InvalidInput: The document has changed since the edit was prepared.
        """
        found = self._chunk(edit.chunk_id)
        if found is None:
            return False
        number, key = found
        title, version = self._db.execute("SELECT title, version FROM documents WHERE number = ?", (number,)).fetchone()
        if version != edit.version:
            raise InvalidInput(f"chunk {edit.chunk_id!r} has changed meanwhile: read it again, then change it")
        seq = self._change_content(number)
        digest = passage_hash(title, self._store.one("SELECT context FROM chunks WHERE key = ?", key), edit.text)
        self._db.execute(
            "UPDATE chunks SET text = ?, tokens = ?, edited = 1, indexed = 1, content_hash = ?, seq = ? WHERE key = ?",
            (edit.text, edit.tokens, digest, seq, key),
        )
        self._db.execute("INSERT OR REPLACE INTO vectors VALUES (?, ?)", (key, vector.tobytes()))
        return True

    def delete_chunks(self, chunk_ids: Sequence[str]) -> Deleted:
        """Deletes chunks, and documents that have none left; ids that are not there are reported."""
        documents, chunks, missing = 0, 0, []
        for name in dict.fromkeys(chunk_ids):
            found = self._chunk(name)
            if found is None:
                missing.append(name)
                continue
            chunks += 1
            number, key = found
            if self._count_chunks([number]) == 1:
                self._delete_numbers([number])
                documents += 1
                continue
            seq = self._change_content(number)
            self._forget_keys([key], seq)
            ordinal = int(name.rpartition("#")[2])
            self._db.execute("UPDATE chunks SET parent = NULL WHERE document = ? AND parent = ?", (number, ordinal))
            self._db.execute("DELETE FROM chunks WHERE key = ?", (key,))
        return Deleted(documents, chunks, tuple(missing))

    def _change_content(self, number: int) -> int:
        """A new version that is no longer what was ingested: ingesting that again brings it back."""
        seq = self._touch(number)
        self._db.execute(
            "UPDATE documents SET seq = ?, version = version + 1, content_hash = X'00' WHERE number = ?", (seq, number)
        )
        return seq

    # Looking up

    def require_own(self, ids: Sequence[str]) -> None:
        """Refuses what a change of those documents would refuse.

        Raises:
            AccessDenied: One may be seen and belongs to someone else.
        """
        for document_id in ids:
            self._mine(document_id)

    def _mine(self, document_id: str) -> int | None:
        """The document's number; None when it is not there or may not be seen.

        Raises:
            AccessDenied: It may be seen and is someone else's.
        """
        visible = visible_to(self._identity)
        sql = f"SELECT d.number, d.owner FROM documents d WHERE d.id = ? AND ({visible.sql})"
        row = self._db.execute(sql, (document_id, *visible.parameters)).fetchone()
        if row is None:
            return None
        self._refuse_unless_mine(document_id, row[1])
        return int(row[0])

    def _chunk(self, name: str) -> tuple[int, int] | None:
        """Number of the document and key of a chunk."""
        parts = parts_of_chunk_id(name)
        number = self._mine(parts[0]) if parts else None
        if number is None or parts is None:
            return None
        key = self._store.one("SELECT key FROM chunks WHERE key = ? AND document = ?", chunk_key(*parts), number)
        return None if key is None else (number, key)

    def _count_chunks(self, numbers: Sequence[int]) -> int:
        return sum(self._store.one("SELECT count(*) FROM chunks WHERE document = ?", n) for n in numbers)

    def _touch(self, number: int) -> int:
        seq = self._next_seq()
        self._db.execute("UPDATE documents SET touched = ?, updated = ? WHERE number = ?", (seq, time.time(), number))
        return seq

    def _next_seq(self) -> int:
        return int(self._store.one("UPDATE state SET seq = seq + 1, updated = ? RETURNING seq", time.time()))


def _chunk_row(chunk: Chunk, key: int, digest: bytes, number: int, seq: int, *, indexed: bool) -> tuple[Any, ...]:
    return (key, number, seq, chunk.ordinal, chunk.parent, chunk.start, chunk.end, chunk.tokens, indexed, digest,
            chunk.context, chunk.text)  # fmt: skip


def _is_nan(vector: np.ndarray) -> bool:
    return bool(np.isnan(vector).any())


def _json(metadata: Metadata) -> str:
    return msgspec.json.encode(metadata).decode()
