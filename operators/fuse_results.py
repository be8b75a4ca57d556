"""Fusing the passages of several searches into one list, by their ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from operators.messages import Passage, Results
from operators.partial import most_partial

K: Final = 60  # the value of RRF's authors


def fuse_results(found: Sequence[Results], *, limit: int, k: int = K) -> Results:
    """The best passages of several searches for one question, by reciprocal rank fusion.

    A passage's score is `sum over the lists of 1 / (k + rank)`, with 1-based ranks (Cormack, Clarke and Buettcher,
    SIGIR 2009), divided by what a passage that is first in every list that found anything would have: it is above 0
    and at most 1. Equal scores keep the order in which the lists, read one after another, first name the passages; so
    one list alone keeps its order. No list names a passage twice.

    Args:
        found: What each search found, best first. The first is the search for the question itself.
        limit: Passages to return at most.
        k: How slowly the reward falls with the rank.

    Returns:
        The plan of the first search with `limit` as its own, and the passages as the first list that holds each has
        them, but for two fields: `score`, which stays None where the plan asks for none, and `semantic`, which is the
        highest that any wording reached.

    Raises:
        ValueError: There is no search, and so no plan.
    """
    if not found:
        raise ValueError("nothing to fuse: give the results of at least one search")
    ranks: dict[str, list[int]] = {}
    named: dict[str, Passage] = {}
    for results in found:
        for rank, passage in enumerate(results.passages, start=1):
            ranks.setdefault(passage.chunk_id, []).append(rank)
            named[passage.chunk_id] = _closest(named.get(passage.chunk_id, passage), passage)
    most = sum(1 for results in found if results.passages) / (k + 1)
    # fsum rounds once, so that equal ranks in another order of lists are equal scores.
    scores = {
        chunk_id: min(1.0, math.fsum(1 / (k + rank) for rank in places) / most) for chunk_id, places in ranks.items()
    }
    best = sorted(scores, key=lambda chunk_id: -scores[chunk_id])[:limit]  # stable: equal ones as first named
    plan = msgspec.structs.replace(found[0].plan, limit=limit)
    return Results(
        plan,
        tuple(msgspec.structs.replace(named[c], score=scores[c] if plan.include_scores else None) for c in best),
        most_partial(results.partial for results in found),
    )


def _closest(known: Passage, other: Passage) -> Passage:
    """The known passage, with the higher semantic score of the two."""
    scores = [p.semantic for p in (known, other) if p.semantic is not None]
    return msgspec.structs.replace(known, semantic=max(scores, default=None))
