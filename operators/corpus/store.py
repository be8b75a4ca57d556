"""The truth of one shard as searches read it: documents, chunks and vectors in one SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from operators.corpus.content import content_hash
from operators.corpus.filter_sql import Condition
from operators.corpus.schema import connect
from operators.messages import Document, DocumentId, KnownVectors

IN_LIST = "IN (SELECT value FROM json_each(?))"
COLLECTIONS = (
    "(SELECT json_group_array(collection) FROM"
    " (SELECT collection FROM memberships WHERE document = d.number ORDER BY collection))"
)


class StoredChunk(NamedTuple):
    """What a passage is made of."""

    document_id: DocumentId
    title: str
    metadata: dict[str, Any]
    owner: str
    collections: tuple[str, ...]
    ordinal: int
    start: int
    end: int
    edited: bool
    text: str


class Store:
    """One connection to a shard's database; not for two threads at once. Open as many as you like: one may write.

    Args:
        path: The database, made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.db: sqlite3.Connection = connect(path)

    def close(self) -> None:
        """Closes the connection."""
        self.db.close()

    def checkpoint(self) -> None:
        """Moves what is in the write-ahead log into the database, as far as the disk and other readers let it.

        A log that a failing disk left behind may read well and yet not lie on the disk: the system forgets what it
        could not write. What is written later must not need it (SQLite checks frames as a chain).
        """
        with suppress(sqlite3.OperationalError):  # a full disk; SQLite tries again by itself
            self.db.execute("PRAGMA wal_checkpoint")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Makes what is read inside the block one moment's truth, whatever others write meanwhile."""
        self.db.execute("BEGIN")
        try:
            yield
        finally:
            self.db.execute("ROLLBACK")

    def one(self, sql: str, *parameters: Any) -> Any:
        """The first column of the first row, or None."""
        row = self.db.execute(sql, parameters).fetchone()
        return row[0] if row else None

    def seq(self) -> int:
        """The number of the last change."""
        return int(self.one("SELECT seq FROM state"))

    def documents(self) -> int:
        """How many there are; takes a millisecond for 100,000."""
        return int(self.one("SELECT count(*) FROM documents"))

    def unchanged(self, documents: Sequence[Document], chunking: str, visible: Condition) -> list[bool]:
        """For each document, whether it is stored with the same content, cut in the same way."""
        sql = f"SELECT content_hash FROM documents d WHERE id = ? AND ({visible.sql})"
        stored = (self.one(sql, d.id, *visible.parameters) for d in documents)
        return [digest == content_hash(d, chunking) for digest, d in zip(stored, documents, strict=True)]

    def known_vectors(self, hashes: Sequence[bytes], visible: Condition) -> KnownVectors:
        """The vectors of indexed chunks with those hashes, one a hash; hashes without one are left out."""
        sql = (
            "SELECT v.vector FROM chunks c JOIN vectors v USING (key) JOIN documents d ON d.number = c.document"
            f" WHERE c.content_hash = ? AND c.indexed AND ({visible.sql}) LIMIT 1"
        )
        found = {h: v for h in dict.fromkeys(hashes) if (v := self.one(sql, h, *visible.parameters)) is not None}
        return KnownVectors(list(found), as_matrix(list(found.values())))

    def allowed(self, condition: Condition) -> np.ndarray:
        """Keys of the indexed chunks that pass, int64[A] ascending."""
        rows = self.db.execute(
            # CROSS: documents first, so that each is tested once and not once a chunk
            "SELECT c.key FROM documents d CROSS JOIN chunks c ON c.document = d.number"
            f" WHERE c.indexed AND ({condition.sql})",
            condition.parameters,
        )
        return np.sort(np.fromiter((row[0] for row in rows), np.int64))

    def touched_since(self, since: int, condition: Condition) -> tuple[np.ndarray, np.ndarray]:
        """Keys of indexed chunks of documents changed after `since`, int64[C], and which of them pass, bool[C]."""
        rows = self.db.execute(
            f"SELECT c.key, ({condition.sql}) FROM documents d JOIN chunks c ON c.document = d.number"
            " WHERE d.touched > ? AND c.indexed",
            (*condition.parameters, since),
        ).fetchall()
        return np.array([row[0] for row in rows], np.int64), np.array([bool(row[1]) for row in rows], bool)

    def vectors(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of the keys that have a vector, int64[N], and their vectors, float32[N, D]."""
        rows = self.db.execute(f"SELECT key, vector FROM vectors WHERE key {IN_LIST}", (as_list(keys),)).fetchall()
        return np.array([key for key, _ in rows], np.int64), as_matrix([vector for _, vector in rows])

    def chunks(self, keys: np.ndarray, visible: Condition) -> dict[int, StoredChunk]:
        """The chunks that are there and may be seen, by key."""
        rows = self.db.execute(
            'SELECT c.key, d.number, d.id, d.title, d.metadata, d.owner, c.ordinal, c.start, c."end", c.edited, c.text,'
            " EXISTS (SELECT 1 FROM memberships m WHERE m.document = d.number)"
            f" FROM chunks c JOIN documents d ON d.number = c.document WHERE c.key {IN_LIST} AND ({visible.sql})",
            (as_list(keys), *visible.parameters),
        ).fetchall()
        members = {row[1] for row in rows if row[-1]}
        collections = self._collections(members) if members else {}
        decode = msgspec.json.decode
        return {
            key: StoredChunk(
                id_, title, decode(metadata), owner, collections.get(number, ()), ordinal, start, end, edited == 1, text
            )
            for key, number, id_, title, metadata, owner, ordinal, start, end, edited, text, _ in rows
        }

    def _collections(self, documents: set[int]) -> dict[int, tuple[str, ...]]:
        """Of those documents that are in one."""
        found: dict[int, tuple[str, ...]] = {}
        for number, name in self.db.execute(
            f"SELECT document, collection FROM memberships WHERE document {IN_LIST} ORDER BY collection",
            (msgspec.json.encode(list(documents)).decode(),),
        ):
            found[number] = (*found.get(number, ()), name)
        return found


def as_list(keys: np.ndarray) -> str:
    """Keys as a parameter for IN_LIST."""
    return msgspec.json.encode(keys.tolist()).decode()


def as_matrix(vectors: Sequence[bytes]) -> np.ndarray:
    """Stored vectors as float32[N, D]; [0, 0] for none."""
    return np.frombuffer(b"".join(vectors), np.float32).reshape(len(vectors), -1 if vectors else 0)
