import sqlite3
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.errors import InvalidInput
from operators.corpus import feed
from operators.corpus.keys import chunk_key
from operators.corpus.listing import list_chunks, list_documents
from operators.corpus.manifest import FORMAT, MANIFEST, CorpusConfig, create_corpus, open_corpus
from operators.corpus.schema import VERSION
from operators.corpus.store import Store
from operators.messages import Listing

FORMAT_1 = """
CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL,
    content_hash BLOB NOT NULL, created REAL NOT NULL, updated REAL NOT NULL, title TEXT NOT NULL,
    source TEXT NOT NULL, media_type TEXT NOT NULL, metadata TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX documents_seq ON documents (seq);
CREATE TABLE chunks (key INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents, seq INTEGER NOT NULL,
    ordinal INTEGER NOT NULL, parent INTEGER, start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    content_hash BLOB NOT NULL, context TEXT NOT NULL, text TEXT NOT NULL, vector BLOB);
CREATE INDEX chunks_document ON chunks (document);
CREATE INDEX chunks_seq ON chunks (seq);
CREATE TABLE removed_documents (id TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE removed_chunks (key INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE state (seq INTEGER NOT NULL);
INSERT INTO state VALUES (3);
INSERT INTO removed_documents VALUES ('gone', 2);
INSERT INTO removed_chunks VALUES (77, 2);
PRAGMA user_version = 1;
"""


def format_1(path: Path) -> np.ndarray:
    """A shard's database as headrace 0.1 left it, with one document of two chunks; returns its one vector."""
    vector = np.arange(16, dtype=np.float32)
    db = sqlite3.connect(path)
    db.executescript(FORMAT_1)
    db.execute(
        "INSERT INTO documents VALUES (1, 'a', 3, X'0102', 10.0, 20.0, 'T', 'a.md', 'text/plain', '{\"n\":1}', 'é b')"
    )
    rows = [(chunk_key("a", 0), 1, 3, 0, None, 0, 1, b"h0", "", "é", vector.tobytes()),
            (chunk_key("a", 1), 1, 3, 1, None, 2, 3, b"h1", "", "b", None)]  # fmt: skip
    db.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    db.commit()
    db.close()
    return vector


def test_tables_of_format_1_become_todays_with_everything_in_them(tmp_path: Path) -> None:
    vector = format_1(tmp_path / "store.sqlite")
    for _ in range(2):  # the second finds them renewed
        store = Store(tmp_path / "store.sqlite")
        assert store.one("PRAGMA user_version") == VERSION
        document = list_documents(store, Listing(), None).documents[0]
        assert (document.id, document.created, document.updated, document.version) == ("a", 10.0, 20.0, 1)
        assert (document.metadata, document.size_bytes, document.chunks) == ({"n": 1}, 4, 2)
        chunks = list_chunks(store, Listing(include_vectors=True), None).chunks
        assert [(c.text, c.start, c.end, c.vector is None) for c in chunks] == [("é", 0, 1, False), ("b", 2, 3, True)]
        assert np.array_equal(chunks[0].vector, vector)  # type: ignore[arg-type]  # not None, as just said
        assert (store.seq(), feed.removed_keys(store, 0).tolist()) == (3, sorted([77, chunk_key("a", 1)]))
        assert store.one("SELECT text FROM texts") == "é b"
        store.close()


def test_tables_of_a_newer_headrace_are_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "store.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(InvalidInput, match=r"has version 99; this headrace reads up to \d+: upgrade headrace"):
        Store(tmp_path / "store.sqlite")


async def test_a_corpus_of_format_1_opens_and_is_renewed(tmp_path: Path, open_shard) -> None:
    create_corpus(tmp_path / "old", CorpusConfig(embedder="test", dimension=16))
    manifest = tmp_path / "old" / MANIFEST
    raw = msgspec.json.decode(manifest.read_bytes())
    raw["format"] = 1
    raw["config"].pop("score_threshold")
    manifest.write_bytes(msgspec.json.encode(raw))
    format_1(tmp_path / "old" / "shards" / "0000" / "store.sqlite")
    assert open_corpus(tmp_path / "old").format == 1
    shard = await open_shard(directory=str(tmp_path / "old"))
    state = await shard.statistics()
    assert (state.documents, state.dense_vectors, state.lexical_chunks) == (1, 1, 1)
    assert open_corpus(tmp_path / "old").format == FORMAT
