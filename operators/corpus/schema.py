"""The tables of a shard's database, and how those of an older headrace become them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from engine.errors import InvalidInput
from operators.corpus.functions import register_functions

VERSION = 2

_TABLES = (
    # `seq` numbers changes of what the indexes hold, `touched` all changes; both come from the one counter in `state`.
    """CREATE TABLE documents (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL, touched INTEGER NOT NULL,
        version INTEGER NOT NULL, content_hash BLOB NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
        title TEXT NOT NULL, source TEXT NOT NULL, media_type TEXT NOT NULL, owner TEXT NOT NULL,
        size_bytes INTEGER NOT NULL, metadata TEXT NOT NULL)""",
    "CREATE INDEX documents_seq ON documents (seq)",
    "CREATE INDEX documents_touched ON documents (touched)",
    "CREATE INDEX documents_owner ON documents (owner)",
    # Apart, so that a filter that looks at every document does not read every text.
    "CREATE TABLE texts (document INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    """CREATE TABLE memberships (
        collection TEXT NOT NULL, document INTEGER NOT NULL, PRIMARY KEY (collection, document)) WITHOUT ROWID""",
    "CREATE INDEX memberships_document ON memberships (document)",
    # `content_hash` covers all that an embedder sees: a chunk that has one's like need not be embedded.
    """CREATE TABLE chunks (
        key INTEGER PRIMARY KEY, document INTEGER NOT NULL, seq INTEGER NOT NULL, ordinal INTEGER NOT NULL,
        parent INTEGER, start INTEGER NOT NULL, "end" INTEGER NOT NULL, tokens INTEGER NOT NULL,
        edited INTEGER NOT NULL, indexed INTEGER NOT NULL, content_hash BLOB NOT NULL, context TEXT NOT NULL,
        text TEXT NOT NULL)""",
    "CREATE INDEX chunks_document ON chunks (document, ordinal)",
    "CREATE INDEX chunks_seq ON chunks (seq)",
    "CREATE INDEX chunks_content ON chunks (content_hash) WHERE indexed",
    "CREATE TABLE vectors (key INTEGER PRIMARY KEY, vector BLOB NOT NULL)",
    "CREATE TABLE removed_documents (id TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE removed_chunks (key INTEGER PRIMARY KEY, seq INTEGER NOT NULL)",
    # `updated` is the time of the last change. What was removed up to change `floor` has been forgotten: who has not
    # followed so far begins anew.
    "CREATE TABLE state (seq INTEGER NOT NULL, floor INTEGER NOT NULL, updated REAL NOT NULL)",
)

_FROM_1 = (
    "ALTER TABLE documents RENAME TO old_documents",
    "ALTER TABLE chunks RENAME TO old_chunks",
    "ALTER TABLE state RENAME TO old_state",
    "DROP INDEX documents_seq",
    "DROP INDEX chunks_document",
    "DROP INDEX chunks_seq",
    *(table for table in _TABLES if "TABLE removed" not in table),
    """INSERT INTO documents SELECT number, id, seq, seq, 1, content_hash, created, updated, title, source, media_type,
        '', length(CAST(text AS BLOB)), metadata FROM old_documents""",
    "INSERT INTO texts SELECT number, text FROM old_documents",
    """INSERT INTO chunks SELECT key, document, seq, ordinal, parent, start, "end", 0, 0, vector IS NOT NULL,
        content_hash, context, text FROM old_chunks""",
    "INSERT INTO vectors SELECT key, vector FROM old_chunks WHERE vector IS NOT NULL",
    "INSERT INTO state SELECT seq, 0, (SELECT coalesce(max(updated), 0) FROM documents) FROM old_state",
    "DROP TABLE old_documents",
    "DROP TABLE old_chunks",
    "DROP TABLE old_state",
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a shard's database, whose tables are made when they are not there and renewed when they are old.

    Raises:
        InvalidInput: The file is no database, cannot be opened, or a newer headrace made it.
    """
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    except sqlite3.OperationalError as error:
        raise InvalidInput(f"{path} cannot be opened: {error}; is its folder there and writable?") from error
    try:
        db.execute("PRAGMA synchronous = FULL")  # an acknowledged write is on the disk
        db.execute("PRAGMA cache_size = -16000")
        register_functions(db)
        if _version(db) != VERSION:
            _renew(db, path)
    except sqlite3.DatabaseError as error:
        db.close()
        raise InvalidInput(f"{path} cannot be used as a database: {error}; restore it from a backup") from error
    except InvalidInput:
        db.close()
        raise
    return db


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _renew(db: sqlite3.Connection, path: Path) -> None:
    """Makes the tables of this version, at once: whoever comes second finds them made."""
    if not _version(db):
        db.execute("PRAGMA journal_mode = WAL")
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db)
        if version > VERSION:
            raise InvalidInput(f"{path} has version {version}; this headrace reads up to {VERSION}: upgrade headrace")
        for statement in () if version == VERSION else (_FROM_1 if version else (*_TABLES, _FIRST)):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


_FIRST = "INSERT INTO state VALUES (0, 0, 0)"
