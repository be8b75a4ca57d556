"""Checks of a shard's database: whether its rows belong together, and whether they say what they must."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from operators.corpus.content import passage_hash
from operators.corpus.findings import Findings, Remedy
from operators.corpus.keys import chunk_id, chunk_key, shard_of
from operators.corpus.lexical import fingerprints
from operators.corpus.manifest import CorpusConfig
from operators.corpus.store import Store, as_matrix

DAMAGE = "damage of the file"
_AT_ONCE = 4096
_UNIT = 1e-3  # by so much the length of a stored vector may differ from 1


class _Rule(NamedTuple):
    """Rows of a table that must not be; those to be removed hold nothing that would be missed."""

    table: str
    example: str
    condition: str
    what: str
    remedy: Remedy = Remedy.INGEST


_NO_DOCUMENT = "document NOT IN (SELECT number FROM documents)"
_RULES = (
    _Rule("chunks", "key", _NO_DOCUMENT, "chunks of no document", Remedy.REMOVE),
    _Rule("texts", "document", _NO_DOCUMENT, "texts of no document", Remedy.REMOVE),
    _Rule("memberships", "collection", _NO_DOCUMENT, "places in collections of no document", Remedy.REMOVE),
    _Rule("vectors", "key", "NOT EXISTS (SELECT 1 FROM chunks c WHERE c.key = vectors.key AND c.indexed)",
          "vectors of no indexed chunk", Remedy.REMOVE),
    _Rule("removed_documents", "id", "id IN (SELECT id FROM documents)",
          "documents that are there and noted as removed", Remedy.REMOVE),
    _Rule("removed_chunks", "key", "EXISTS (SELECT 1 FROM chunks c WHERE c.key = removed_chunks.key AND c.indexed)",
          "chunks that are there and noted as removed", Remedy.REMOVE),
    _Rule("chunks", "key", "indexed AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.key = chunks.key)",
          "indexed chunks without a vector"),
    _Rule("documents", "id", "number NOT IN (SELECT document FROM texts)", "documents without a text"),
    _Rule("documents", "id", "NOT json_valid(metadata)", "documents whose metadata is no JSON"),
    _Rule("documents", "id", "NOT (0 < seq AND seq <= touched AND touched <= (SELECT max(seq) FROM state))",
          "documents with a number of change that was never given", Remedy.RESTORE),
    _Rule("chunks", "key", "seq > (SELECT seq FROM documents WHERE number = document)",
          "chunks with a later number of change than their document", Remedy.RESTORE),
    _Rule("removed_chunks", "key", "seq > (SELECT max(seq) FROM state)",
          "removals with a number of change that was never given", Remedy.RESTORE),
)  # fmt: skip


def remove_orphans(store: Store) -> None:
    """Removes rows that belong to nothing, which no one would miss."""
    store.db.execute("BEGIN IMMEDIATE")
    try:
        for rule in _RULES:
            if rule.remedy is Remedy.REMOVE:
                store.db.execute(f"DELETE FROM {rule.table} WHERE {rule.condition}")
    except BaseException:
        store.db.execute("ROLLBACK")
        raise
    store.db.execute("COMMIT")


class Indexed(NamedTuple):
    """What the indexes must hold."""

    keys: np.ndarray  # int64[N] ascending
    prints: np.ndarray  # int64[N], fingerprints of what the lexical index must have of each


class TruthCheck:
    """One check of a shard's database, at one moment of it.

    Args:
        store: In a snapshot.
        config: The corpus's.
        shard: Which of the corpus's shards it is.
        findings: Where it is noted what is wrong.
        looked: Called with a number of chunks whenever so many more were looked at.
    """

    def __init__(
        self, store: Store, config: CorpusConfig, *, shard: int, findings: Findings, looked: Callable[[int], None]
    ) -> None:
        self._store = store
        self._config = config
        self._shard = shard
        self._findings = findings
        self._looked = looked
        self._keys = array("q")
        self._prints = array("q")

    def run(self) -> Indexed:
        """Looks at everything but the vectors, and says what the indexes must hold.

        Raises:
            sqlite3.DatabaseError: The file is damaged so much that it cannot be read.
        """
        if (said := self._store.one("PRAGMA integrity_check(1)")) != "ok":
            self._note(DAMAGE, said, Remedy.RESTORE)
        for rule in _RULES:
            wrong = f"FROM {rule.table} WHERE {rule.condition}"
            if count := self._store.one(f"SELECT count(*) {wrong}"):
                example = self._store.one(f"SELECT min({rule.example}) {wrong}")
                self._note(rule.what, example, rule.remedy, count=count)
        rows = self._store.db.execute(
            "SELECT d.number, d.id, d.title, d.size_bytes, t.text FROM documents d JOIN texts t ON document = number"
        )
        for number, *document in rows:
            self._check_document(number, *document)
        keys, prints = np.array(self._keys, np.int64), np.array(self._prints, np.int64)
        order = np.argsort(keys)
        return Indexed(keys[order], prints[order])

    def _check_document(self, number: int, document_id: str, title: str, size_bytes: int, text: str) -> None:
        if shard_of(document_id, self._config.shards) != self._shard:
            self._note("documents that belong to another shard", document_id, Remedy.RESTORE)
        if len(text.encode()) != size_bytes:
            self._note("documents with a text of another length than noted", document_id, Remedy.INGEST)
        chunks = [_Chunk(*row) for row in self._store.db.execute(_CHUNKS, (number,))]
        ordinals = {chunk.ordinal for chunk in chunks}
        indexed = [chunk for chunk in chunks if chunk.indexed]
        titles = [f"{title} {chunk.context}".strip() for chunk in indexed]
        self._keys.extend(chunk.key for chunk in indexed)
        self._prints.extend(fingerprints(titles, [chunk.text for chunk in indexed]))
        for chunk in chunks:
            for what in _wrong(chunk, document_id, title, text):
                self._note(what, chunk_id(document_id, chunk.ordinal), Remedy.INGEST)
            if chunk.parent is not None and chunk.parent not in ordinals:
                self._note("chunks whose parent is not there", chunk_id(document_id, chunk.ordinal), Remedy.INGEST)
        self._looked(len(chunks))

    def vectors(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Looks at the vectors and yields those of the right size, keys int64[N] and float32[N, D], a few at a time."""
        rows = self._store.db.execute("SELECT key, vector FROM vectors ORDER BY key")
        size = 4 * self._config.dimension
        while found := rows.fetchmany(_AT_ONCE):
            fitting = [(key, vector) for key, vector in found if isinstance(vector, bytes) and len(vector) == size]
            for key in {key for key, _ in found} - {key for key, _ in fitting}:
                self._note("vectors of another dimension", key, Remedy.INGEST)
            keys = np.array([key for key, _ in fitting], np.int64)
            vectors = as_matrix([vector for _, vector in fitting]).reshape(len(keys), self._config.dimension)
            self._check_values(keys, vectors)
            yield keys, vectors
            self._looked(len(found))

    def _check_values(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        finite = np.isfinite(vectors).all(axis=1)
        self._note_keys("vectors that are not finite", keys[~finite])
        if self._config.measure == "cosine":
            lengths = np.linalg.norm(vectors[finite], axis=1)
            unit = (np.abs(lengths - 1) < _UNIT) | (lengths == 0)
            self._note_keys("vectors that are not of unit length", keys[finite][~unit])

    def _note_keys(self, what: str, keys: np.ndarray) -> None:
        if len(keys):
            self._note(what, int(keys[0]), Remedy.INGEST, count=len(keys))

    def _note(self, what: str, example: object, remedy: Remedy, *, count: int = 1) -> None:
        self._findings.add("database", what, example, remedy, count=count)


class _Chunk(NamedTuple):
    key: int
    indexed: bool
    ordinal: int
    parent: int | None
    edited: bool
    start: int
    end: int
    content_hash: bytes
    context: str
    text: str


_CHUNKS = (
    'SELECT key, indexed, ordinal, parent, edited, start, "end", content_hash, context, text FROM chunks'
    " WHERE document = ?"
)


def _wrong(chunk: _Chunk, document_id: str, title: str, text: str) -> Iterator[str]:
    if chunk.key != chunk_key(document_id, chunk.ordinal):
        yield "chunks with the key of another chunk"
    if not 0 <= chunk.start <= chunk.end <= len(text):
        yield "chunks that lie outside their document"
    elif not chunk.edited and text[chunk.start : chunk.end] != chunk.text:
        yield "chunks that are not the text that they stand for"
    if chunk.content_hash != passage_hash(title, chunk.context, chunk.text):
        yield "chunks with a text that was not written so"
