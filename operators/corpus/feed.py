"""What has happened in a shard since a given change, which is how both indexes follow the database."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from operators.corpus.store import Store, as_matrix
from operators.messages import DocumentId

_FORGET_FROM = 10_000  # removals remembered at least: forgetting makes readers elsewhere begin anew


class ChangedDocument(NamedTuple):
    """A document as an index must hold it: its indexed chunks, in order; none for one that has none."""

    id: DocumentId
    title: str
    keys: list[int]
    contexts: list[str]
    texts: list[str]


def floor(store: Store) -> int:
    """Who has followed up to an earlier change than this one must begin anew: what was removed is forgotten."""
    return int(store.one("SELECT floor FROM state"))


def removed_documents(store: Store, since: int) -> list[str]:
    """Ids of documents deleted after change `since` that are not back."""
    rows = store.db.execute("SELECT id FROM removed_documents WHERE seq > ?", (since,))
    return [row[0] for row in rows]


def changed_documents(store: Store, since: int) -> Iterator[ChangedDocument]:
    """Documents added or replaced after change `since`, oldest change first."""
    rows = store.db.execute(
        "SELECT d.id, d.title, c.key, c.context, c.text FROM documents d"
        " LEFT JOIN chunks c ON c.document = d.number AND c.indexed"
        " WHERE d.seq > ? ORDER BY d.seq, d.number, c.ordinal",
        (since,),
    )
    for (document_id, title), group in groupby(rows, key=lambda row: row[:2]):
        chunks = [row[2:] for row in group if row[2] is not None]
        keys, contexts, texts = ([chunk[column] for chunk in chunks] for column in range(3))
        yield ChangedDocument(document_id, title, keys, contexts, texts)


def removed_keys(store: Store, since: int) -> np.ndarray:
    """Keys of chunks that left the indexes after change `since`: int64[R]."""
    rows = store.db.execute(
        "SELECT key FROM removed_chunks WHERE seq > ?1 UNION SELECT key FROM chunks WHERE seq > ?1 AND NOT indexed",
        (since,),
    )
    return np.array([row[0] for row in rows], np.int64)


def changed_vectors(store: Store, since: int, batch: int = 1024) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys int64[N] and vectors float32[N, D] of chunks whose vector came after change `since`, N up to `batch`."""
    rows = store.db.execute(
        "SELECT key, vector FROM chunks JOIN vectors USING (key) WHERE seq > ? AND indexed ORDER BY seq, key", (since,)
    )
    while found := rows.fetchmany(batch):
        yield np.array([key for key, _ in found], np.int64), as_matrix([vector for _, vector in found])


def forget(store: Store, upto: int) -> None:
    """Forgets what was removed up to change `upto`, which both indexes have on the disk, once it has become much."""
    removed = int(store.one("SELECT count(*) FROM removed_chunks"))
    if removed <= max(_FORGET_FROM, int(store.one("SELECT count(*) FROM chunks"))):
        return
    store.db.execute("BEGIN IMMEDIATE")
    try:
        store.db.execute("DELETE FROM removed_chunks WHERE seq <= ?", (upto,))
        store.db.execute("DELETE FROM removed_documents WHERE seq <= ?", (upto,))
        store.db.execute("UPDATE state SET floor = max(floor, ?)", (upto,))
    except BaseException:
        store.db.execute("ROLLBACK")
        raise
    store.db.execute("COMMIT")
