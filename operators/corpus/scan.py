"""The best of many vectors, by comparing every one with the query.

Shape legend: N = vectors, D = dimensions, K = hits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from operators.corpus.allowed import Allowed
from operators.corpus.measures import semantic_scores
from operators.corpus.shared_lock import SharedLock
from operators.corpus.vector_table import VectorTable


class Hits(NamedTuple):
    """What a search found: keys int64[K] and scores float32[K], score descending, then key ascending.

    `how` says in a few words how it was found, for people.
    """

    keys: np.ndarray
    scores: np.ndarray
    how: str


def best(keys: np.ndarray, scores: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `limit` of N, score descending, then key ascending, without those whose key is negative.

    >>> best(np.array([7, 3, -1, 5]), np.array([0.5, 0.5, 0.9, 0.2], np.float32), 2)
    (array([3, 7]), array([0.5, 0.5], dtype=float32))
    """
    living = keys >= 0
    if not living.all():
        keys, scores = keys[living], scores[living]
    costs = -scores
    if len(keys) > limit > 0:  # sorting a few is quicker
        few = costs <= np.partition(costs, limit - 1)[limit - 1]
        keys, scores, costs = keys[few], scores[few], costs[few]
    order = np.lexsort((keys, costs))[: max(0, limit)]
    return keys[order], scores[order]


def compare(
    table: VectorTable, query: np.ndarray, limit: int, allowed: Allowed | None, *, measure: str, lock: SharedLock
) -> Hits:
    """The best of all vectors in a table, or of the allowed ones.

    Args:
        table: Where they are.
        query: float32[D].
        limit: K at most.
        allowed: The only keys to choose from; None for all.
        measure: One of MEASURES.
        lock: Held alone by whoever changes the table; shared here for a moment only, since what was there then stays.
    """
    with lock.shared():
        total = len(table)
        if allowed is None:
            keys, blocks = table.keys.copy(), table.blocks(table.rows)
        else:
            rows = table.rows_of(allowed.keys)
            keys, blocks = table.keys[rows], table.blocks_of(rows)
    scores = [np.empty(0, np.float32), *(semantic_scores(block, query, measure) for block in blocks)]
    what = f"all {total:,} vectors" if allowed is None else f"the {len(keys):,} allowed of {total:,}"
    return Hits(*best(keys, np.concatenate(scores), limit), f"compared {what} by {measure}")
