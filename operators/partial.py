"""What an answer lacks because shards did not answer: from what the request had to do without."""

from __future__ import annotations

from collections.abc import Iterable

from engine.scope import Scope
from operators.messages import Partial


def partial_of(scope: Scope) -> Partial | None:
    """All shards that any step did without, and what the others cover; None when there is no such.

    >>> from engine.scope import Loss
    >>> scope = Scope()
    >>> scope.losses += [Loss("dense", "shard", (3,), (0.125,)), Loss("lexical", "shard", (1, 3), (0.25, 0.125))]
    >>> partial_of(scope)
    Partial(missing=(1, 3), coverage=0.625)
    """
    shares = {shard: share for loss in scope.losses for shard, share in zip(loss.shards, loss.shares, strict=True)}
    return Partial(tuple(sorted(shares)), max(0.0, 1 - sum(shares.values()))) if shares else None


def most_partial(found: Iterable[Partial | None]) -> Partial | None:
    """The one that covers least, of several answers that were put together; None when all are whole."""
    return min(filter(None, found), key=lambda partial: partial.coverage, default=None)
