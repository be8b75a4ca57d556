"""The truth of one shard: documents, chunks, vectors and the order of their changes, in one SQLite database.

Every change of a document has a sequence number, one higher than the last. Both indexes are derived: each remembers
the number up to which it has followed, and `changed_*` and `removed_*` say what has happened since.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.errors import InvalidInput
from operators.corpus.content import chunk_hash, content_hash
from operators.corpus.filters import condition
from operators.corpus.keys import chunk_key
from operators.corpus.schema import connect
from operators.messages import Document, DocumentId, EmbeddedDocument, Written

_IN = "IN (SELECT value FROM json_each(?))"


class ChangedDocument(NamedTuple):
    """A document as an index must hold it: its indexed chunks, in order; none for one that has none."""

    id: DocumentId
    title: str
    keys: list[int]
    contexts: list[str]
    texts: list[str]


class StoredChunk(NamedTuple):
    """What a passage is made of."""

    document_id: DocumentId
    title: str
    metadata: dict[str, Any]
    ordinal: int
    start: int
    end: int
    text: str


class Counts(NamedTuple):
    """Sizes of a shard's truth; `updated` is the time of the last change in seconds since 1970, 0 for none."""

    documents: int
    chunks: int
    indexed: int
    updated: float


class Store:
    """One connection to a shard's database; not for two threads at once. Open as many as you like: one may write.

    Args:
        path: The database, made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._db = connect(path)

    def close(self) -> None:
        """Closes the connection."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _one(self, sql: str, *parameters: Any) -> Any:
        row = self._db.execute(sql, parameters).fetchone()
        return row[0] if row else None

    # Writing

    def write(self, documents: Sequence[EmbeddedDocument]) -> list[Written]:
        """Adds or replaces documents, all or none, and returns when they are on the disk.

        The vectors are stored as they come; a chunk whose row is NaN is stored without one and is in no index.
        """
        with self._transaction():
            return [self._write(document) for document in documents]

    def _write(self, embedded: EmbeddedDocument) -> Written:
        document, digest, now = embedded.document, content_hash(embedded.document), time.time()
        old = self._db.execute("SELECT number, content_hash FROM documents WHERE id = ?", (document.id,)).fetchone()
        if old and old[1] == digest:
            chunks = self._one("SELECT count(*) FROM chunks WHERE document = ?", old[0])
            return Written(document.id, "unchanged", chunks)
        seq = self._next_seq()
        row = (seq, digest, now, document.title, document.source, document.media_type, _json(document), document.text)
        if old:
            number = old[0]
            self._remove_chunks(number, seq)
            self._db.execute(
                "UPDATE documents SET seq = ?, content_hash = ?, updated = ?, title = ?, source = ?, media_type = ?,"
                " metadata = ?, text = ? WHERE number = ?",
                (*row, number),
            )
        else:
            number = self._db.execute(
                "INSERT INTO documents (seq, content_hash, updated, title, source, media_type, metadata, text,"
                " id, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, document.id, now),
            ).lastrowid
            self._db.execute("DELETE FROM removed_documents WHERE id = ?", (document.id,))
        self._insert_chunks(embedded, number, seq)
        return Written(document.id, "replaced" if old else "added", len(embedded.chunks))

    def _insert_chunks(self, embedded: EmbeddedDocument, number: int | None, seq: int) -> None:
        document = embedded.document
        has_vector = ~np.isnan(embedded.vectors).any(axis=1)
        rows = [
            (
                chunk_key(document.id, c.ordinal), number, seq, c.ordinal, c.parent, c.start, c.end,
                chunk_hash(document, c), c.context, c.text, vector.tobytes() if indexed else None,
            )
            for c, vector, indexed in zip(embedded.chunks, embedded.vectors, has_vector, strict=True)
        ]  # fmt: skip
        try:
            self._db.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            raise InvalidInput(
                f"document {document.id!r}: a chunk's key is taken, by the same ordinal twice or by another document "
                "(63-bit hashes may collide, if hardly ever); give the document another id"
            ) from error
        self._db.executemany("DELETE FROM removed_chunks WHERE key = ?", ((row[0],) for row in rows))

    def _remove_chunks(self, number: int, seq: int) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO removed_chunks SELECT key, ? FROM chunks WHERE document = ?", (seq, number)
        )
        self._db.execute("DELETE FROM chunks WHERE document = ?", (number,))

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Deletes documents in one transaction; returns the ids that are not there, in the given order."""
        missing = []
        with self._transaction():
            for document_id in ids:
                number = self._one("SELECT number FROM documents WHERE id = ?", document_id)
                if number is None:
                    missing.append(document_id)
                    continue
                seq = self._next_seq()
                self._remove_chunks(number, seq)
                self._db.execute("DELETE FROM documents WHERE number = ?", (number,))
                self._db.execute("INSERT OR REPLACE INTO removed_documents VALUES (?, ?)", (document_id, seq))
        return missing

    def _next_seq(self) -> int:
        return int(self._one("UPDATE state SET seq = seq + 1 RETURNING seq"))

    # Following

    def seq(self) -> int:
        """The number of the last change."""
        return int(self._one("SELECT seq FROM state"))

    def removed_documents(self, since: int) -> list[str]:
        """Ids of documents deleted after change `since` that are not back."""
        rows = self._db.execute("SELECT id FROM removed_documents WHERE seq > ?", (since,))
        return [row[0] for row in rows]

    def changed_documents(self, since: int) -> Iterator[ChangedDocument]:
        """Documents added or replaced after change `since`, oldest change first."""
        rows = self._db.execute(
            "SELECT d.id, d.title, c.key, c.context, c.text FROM documents d"
            " LEFT JOIN chunks c ON c.document = d.number AND c.vector IS NOT NULL"
            " WHERE d.seq > ? ORDER BY d.seq, c.ordinal",
            (since,),
        )
        for (document_id, title), group in groupby(rows, key=lambda row: row[:2]):
            chunks = [row[2:] for row in group if row[2] is not None]
            keys, contexts, texts = ([chunk[column] for chunk in chunks] for column in range(3))
            yield ChangedDocument(document_id, title, keys, contexts, texts)

    def removed_keys(self, since: int) -> np.ndarray:
        """Keys of chunks gone after change `since`: int64[R]."""
        rows = self._db.execute(
            "SELECT key FROM removed_chunks WHERE seq > ?1"
            " UNION SELECT key FROM chunks WHERE seq > ?1 AND vector IS NULL",
            (since,),
        )
        return np.array([row[0] for row in rows], np.int64)

    def changed_vectors(self, since: int, batch: int = 1024) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Keys int64[N] and vectors float32[N, D] of chunks added or replaced after change `since`, N up to `batch`."""
        rows = self._db.execute(
            "SELECT key, vector FROM chunks WHERE seq > ? AND vector IS NOT NULL ORDER BY seq, ordinal", (since,)
        )
        while found := rows.fetchmany(batch):
            yield _vectors(found)

    # Reading

    def unchanged(self, documents: Sequence[Document]) -> list[bool]:
        """For each document, whether it is stored with the same content."""
        stored = (self._one("SELECT content_hash FROM documents WHERE id = ?", d.id) for d in documents)
        return [digest == content_hash(d) for digest, d in zip(stored, documents, strict=True)]

    def allowed(self, filters: dict[str, Any], scope_prefix: str) -> np.ndarray:
        """Keys of the indexed chunks whose documents pass, int64[A] ascending."""
        where, parameters = condition(filters, scope_prefix)
        rows = self._db.execute(
            "SELECT key FROM chunks WHERE vector IS NOT NULL AND document IN"
            f" (SELECT number FROM documents WHERE {where}) ORDER BY key",
            parameters,
        )
        return np.array([row[0] for row in rows], np.int64)

    def vectors(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of the keys that have a vector, int64[N], and their vectors, float32[N, D]."""
        rows = self._db.execute(
            f"SELECT key, vector FROM chunks WHERE key {_IN} AND vector IS NOT NULL", (_list(keys),)
        )
        return _vectors(rows.fetchall())

    def chunks(self, keys: np.ndarray) -> dict[int, StoredChunk]:
        """The chunks that are there, by key."""
        rows = self._db.execute(
            'SELECT c.key, d.id, d.title, d.metadata, c.ordinal, c.start, c."end", c.text'
            f" FROM chunks c JOIN documents d ON d.number = c.document WHERE c.key {_IN}",
            (_list(keys),),
        )
        return {
            key: StoredChunk(document_id, title, msgspec.json.decode(metadata), *place)
            for key, document_id, title, metadata, *place in rows
        }

    def counts(self) -> Counts:
        """How much is stored."""
        documents, updated = self._db.execute("SELECT count(*), coalesce(max(updated), 0) FROM documents").fetchone()
        chunks, indexed = self._db.execute("SELECT count(*), count(vector) FROM chunks").fetchone()
        return Counts(documents, chunks, indexed, updated)


def _json(document: Document) -> str:
    return msgspec.json.encode(document.metadata).decode()


def _list(keys: np.ndarray) -> str:
    return msgspec.json.encode(keys.tolist()).decode()


def _vectors(rows: list[tuple[int, bytes]]) -> tuple[np.ndarray, np.ndarray]:
    keys = np.array([key for key, _ in rows], np.int64)
    matrix = np.frombuffer(b"".join(vector for _, vector in rows), np.float32)
    return keys, matrix.reshape(len(rows), -1) if rows else matrix.reshape(0, 0)
