"""The tables of a shard's database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from engine.errors import InvalidInput

_TABLES = (
    # `text` is last, so that a look at the other columns does not read it.
    """CREATE TABLE documents (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL, content_hash BLOB NOT NULL,
        created REAL NOT NULL, updated REAL NOT NULL, title TEXT NOT NULL, source TEXT NOT NULL,
        media_type TEXT NOT NULL, metadata TEXT NOT NULL, text TEXT NOT NULL)""",
    "CREATE INDEX documents_seq ON documents (seq)",
    # `content_hash` covers all that an embedder sees: by it a later version can take over vectors that still hold.
    """CREATE TABLE chunks (
        key INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents, seq INTEGER NOT NULL,
        ordinal INTEGER NOT NULL, parent INTEGER, start INTEGER NOT NULL, "end" INTEGER NOT NULL,
        content_hash BLOB NOT NULL, context TEXT NOT NULL, text TEXT NOT NULL, vector BLOB)""",
    "CREATE INDEX chunks_document ON chunks (document)",
    "CREATE INDEX chunks_seq ON chunks (seq)",
    "CREATE TABLE removed_documents (id TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE removed_chunks (key INTEGER PRIMARY KEY, seq INTEGER NOT NULL)",
    "CREATE TABLE state (seq INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0)",
    "PRAGMA user_version = 1",
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a shard's database, whose tables are made when they are not there.

    Raises:
        InvalidInput: The file is no database, or cannot be opened.
    """
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    except sqlite3.OperationalError as error:
        raise InvalidInput(f"{path} cannot be opened: {error}; is its folder there and writable?") from error
    try:
        db.execute("PRAGMA synchronous = FULL")  # an acknowledged write is on the disk
        db.execute("PRAGMA cache_size = -16000")
        if not _version(db):
            db.execute("PRAGMA journal_mode = WAL")
            _create(db)
    except sqlite3.DatabaseError as error:
        db.close()
        raise InvalidInput(f"{path} cannot be used as a database: {error}; restore it from a backup") from error
    return db


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _create(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    if not _version(db):  # nobody else was quicker
        for statement in _TABLES:
            db.execute(statement)
    db.execute("COMMIT")
