"""Changes to a store of a test's own, each a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.scope import Identity
from operators.corpus.changes import Changes
from operators.corpus.store import Store


@contextmanager
def changing(store: Store, identity: Identity | None = None) -> Iterator[Changes]:
    """The changes of one transaction, which an error undoes."""
    store.db.execute("BEGIN IMMEDIATE")
    try:
        yield Changes(store, identity)
    except BaseException:
        store.db.execute("ROLLBACK")
        raise
    store.db.execute("COMMIT")
