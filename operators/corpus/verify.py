"""Checks of a shard: whether its database is sound, and whether both indexes hold what it says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np

from operators.corpus import feed
from operators.corpus.findings import Finding, Findings, Remedy
from operators.corpus.indexes import Indexes
from operators.corpus.keys import chunk_id
from operators.corpus.manifest import CorpusConfig
from operators.corpus.store import Store
from operators.corpus.verify_truth import DAMAGE, TruthCheck, remove_orphans


class ShardVerification(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a shard; what is `repaired` was found and is right now."""

    shard: int
    documents: int
    chunks: int
    findings: tuple[Finding, ...]
    repaired: tuple[Finding, ...] = ()


def verify_shard(store: Store, indexes: Indexes, config: CorpusConfig, shard: int = 0) -> list[Finding]:
    """What is wrong in a shard, one entry a kind; see Verification."""
    return list(Verification(store, indexes, config, shard=shard).run().findings)


def verify_file(path: Path, shard: int) -> ShardVerification:
    """What SQLite says of a database that perhaps cannot be opened."""
    findings = Findings()
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            said = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        said = str(error)
    if said != "ok":
        findings.add("database", DAMAGE, said, Remedy.RESTORE)
    return ShardVerification(shard=shard, documents=0, chunks=0, findings=findings.all())


def repair_shard(store: Store, indexes: Indexes) -> None:
    """Removes rows that belong to nothing, and makes both indexes anew from the database.

    Args:
        store: The connection that writes.
        indexes: The shard's, writable.
    """
    remove_orphans(store)
    indexes.rebuild(store)


def after_repair(before: ShardVerification, now: ShardVerification) -> ShardVerification:
    """What a check after a repair found, with what it no longer found."""
    left = {(f.part, f.what) for f in now.findings}
    repaired = tuple(f for f in before.findings if (f.part, f.what) not in left)
    return msgspec.structs.replace(now, repaired=repaired)


class Verification:
    """One check of a shard, which may run beside its writer: what changes meanwhile is left to the next one.

    Args:
        store: A connection for the check alone.
        indexes: The shard's.
        config: The corpus's.
        shard: Which of the corpus's shards it is.
    """

    def __init__(self, store: Store, indexes: Indexes, config: CorpusConfig, *, shard: int) -> None:
        self._store = store
        self._indexes = indexes
        self._shard = shard
        self._findings = Findings()
        self._truth = TruthCheck(store, config, shard=shard, findings=self._findings, looked=self._count)
        self._looked = self._to_look_at = 0

    @property
    def share(self) -> float:
        """How much is done, 0 to 1."""
        return min(1.0, self._looked / self._to_look_at) if self._to_look_at else 0.0

    def _count(self, chunks: int) -> None:
        self._looked += chunks

    def run(self) -> ShardVerification:
        """Looks at everything."""
        documents = chunks = 0
        try:
            documents = self._store.one("SELECT count(*) FROM documents")
            chunks = self._store.one("SELECT count(*) FROM chunks")
            self._to_look_at = chunks + self._store.one("SELECT count(*) FROM vectors")
            self._check()
        except sqlite3.DatabaseError as error:
            self._findings.add("database", DAMAGE, error, Remedy.RESTORE)
        return ShardVerification(shard=self._shard, documents=documents, chunks=chunks, findings=self._findings.all())

    def _check(self) -> None:
        """Reads each index, then one moment of the database, then forgives what has changed since the first."""
        dense_seq, lexical_seq = self._indexes.dense.seq, self._indexes.lexical_seq
        dense_keys = np.sort(self._indexes.dense.keys())
        lexical_keys, lexical_prints = self._indexes.lexical.prints()
        with self._store.snapshot():
            now = self._store.seq()
            wanted = self._truth.run()
            other_vectors = self._other_vectors(dense_keys)
        there, rows, wanted_rows = np.intersect1d(lexical_keys, wanted.keys, return_indices=True)
        other_texts = there[lexical_prints[rows] != wanted.prints[wanted_rows]]
        for part, seq, keys, other in (
            ("dense", dense_seq, dense_keys, other_vectors),
            ("lexical", lexical_seq, lexical_keys, other_texts),
        ):
            if seq > now:
                self._findings.add(part, "an index of a later day than the database", f"{seq} > {now}", Remedy.REBUILD)
            self._blame(part, "chunks that it lacks", np.setdiff1d(wanted.keys, keys), seq)
            self._blame(part, "chunks that are there no more", np.setdiff1d(keys, wanted.keys), seq)
            self._blame(part, "chunks that it holds otherwise", other, seq)

    def _other_vectors(self, dense_keys: np.ndarray) -> np.ndarray:
        """Keys of vectors that the dense index holds otherwise than the database."""
        other = [np.empty(0, np.int64)]
        for keys, vectors in self._truth.vectors():
            both = np.isin(keys, dense_keys, assume_unique=True)
            while len(held := self._indexes.dense.stored(keys[both])) < both.sum():  # some have left it just now
                both &= np.isin(keys, self._indexes.dense.keys(), assume_unique=True)
            other.append(keys[both][(held != vectors[both]).any(axis=1)])
        return np.concatenate(other)

    def _blame(self, part: str, what: str, keys: np.ndarray, since: int) -> None:
        """Notes chunks with which something is wrong, but for those that have changed since the index was read."""
        if not len(keys) or since < feed.floor(self._store):  # an index so far behind is about to begin anew
            return
        keys = np.setdiff1d(keys, _changed(self._store, since))
        if not len(keys):
            return
        name = "SELECT d.id, c.ordinal FROM chunks c JOIN documents d ON d.number = c.document WHERE c.key = ?"
        row = self._store.db.execute(name, (int(keys[0]),)).fetchone()
        example = chunk_id(*row) if row else int(keys[0])
        self._findings.add(part, what, example, Remedy.REBUILD, count=len(keys))


def _changed(store: Store, since: int) -> np.ndarray:
    """Keys of chunks of which an index that has followed up to a change need not know what there is now."""
    rows = store.db.execute(
        "SELECT c.key FROM chunks c JOIN documents d ON d.number = c.document WHERE d.seq > ?", (since,)
    )
    return np.union1d(np.fromiter((row[0] for row in rows), np.int64), feed.removed_keys(store, since))
