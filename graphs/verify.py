"""Verification: every shard checks its database, and compares both indexes with it."""

from __future__ import annotations

from statistics import fmean

from engine.graph import Graph, graph
from graphs.corpus import joined
from graphs.parts import Parts
from operators.corpus.shard import Shard
from operators.corpus.verify import ShardVerification


def verify(parts: Parts) -> Graph[[bool], list[ShardVerification]]:
    """The graph that checks a corpus, and repairs it if asked to; then its parts must be writable."""
    check = parts.shards.gather(Shard.verify, joined)

    @graph
    def verify(repair: bool) -> list[ShardVerification]:
        """Checks every shard."""
        return check(repair)

    return verify


def verified_share(parts: Parts) -> Graph[[], float]:
    """The graph that tells how much of a running verification is done, 0 to 1."""
    share = parts.shards.gather(Shard.verified_share, fmean)

    @graph
    def verified_share() -> float:
        """Asks every shard."""
        return share()

    return verified_share
