"""Which chunks a question may find: filters, scope and whoever asks, as the keys that they let through."""

from __future__ import annotations

import threading
from collections import OrderedDict

import msgspec
import numpy as np

from engine.scope import Identity
from operators.corpus import feed
from operators.corpus.allowed import Allowed
from operators.corpus.filter_sql import Condition, both, compile_filter, in_scope, visible_to
from operators.corpus.store import Store
from operators.filter_tree import EVERYTHING, Filter

_KEPT = 64


def condition_of(filters: Filter, scope_prefix: str, identity: Identity | None) -> Condition:
    """The one condition that a read has to meet."""
    return both(compile_filter(filters), in_scope(scope_prefix), visible_to(identity))


class Selections:
    """The keys that recent filters let through, kept up to date: after a change only what it touched is looked at.

    Safe from any thread.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, Allowed]] = OrderedDict()
        self._lock = threading.Lock()

    def allowed(self, store: Store, filters: Filter, scope_prefix: str, identity: Identity | None) -> Allowed | None:
        """The keys that may be found; None for all of them."""
        if filters == EVERYTHING and not scope_prefix and identity is None:
            return None
        name = msgspec.msgpack.encode((filters, scope_prefix, identity))
        with self._lock:
            known = self._known.get(name)
        with store.snapshot():
            seq = store.seq()
            if known is None or known[0] != seq:
                known = seq, _selected(store, condition_of(filters, scope_prefix, identity), known)
        with self._lock:
            self._known[name] = known
            self._known.move_to_end(name)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return known[1]


def _selected(store: Store, condition: Condition, known: tuple[int, Allowed] | None) -> Allowed:
    if known is None or known[0] < feed.floor(store):
        return Allowed(store.allowed(condition))
    since, allowed = known
    touched, passing = store.touched_since(since, condition)
    gone = np.concatenate([touched, feed.removed_keys(store, since)])
    kept = allowed.keys[~np.isin(allowed.keys, gone)] if len(gone) else allowed.keys
    if len(kept) == len(allowed.keys) and not passing.any():
        return allowed
    return Allowed(np.sort(np.concatenate([kept, touched[passing]])))
