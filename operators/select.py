"""What is fetched: the head of a fused ranking, asked of the shards that hold it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from operators.messages import Passage, Plan, Ranking, Results


def cut_to_limit(plan: Plan, ranking: Ranking) -> Ranking:
    """The hits that the plan returns."""
    return head(ranking, plan.limit)


def cut_to_candidates(plan: Plan, ranking: Ranking) -> Ranking:
    """The hits that a reranker reads, and at least those that the plan returns."""
    return head(ranking, max(plan.limit, plan.rerank_candidates))


def head(ranking: Ranking, n: int) -> Ranking:
    """The first `n` hits."""
    return msgspec.structs.replace(
        ranking,
        keys=ranking.keys[:n],
        scores=ranking.scores[:n],
        shards=ranking.shards[:n],
        ranks={leg: ranks[:n] for leg, ranks in ranking.ranks.items()},
    )


def owners(shards: int, ranking: Ranking) -> list[tuple[Any, ...] | None]:
    """For each shard the arguments of its fetch, or None where it holds no hit: it is not asked then."""
    holding = set(np.unique(ranking.shards).tolist())
    return [(ranking,) if shard in holding else None for shard in range(shards)]


def owners_of_plan(shards: int, plan: Plan, ranking: Ranking) -> list[tuple[Any, ...] | None]:
    """As `owners`, for a call that takes the plan, too."""
    return [None if own is None else (plan, ranking) for own in owners(shards, ranking)]


def results(plan: Plan, passages: list[Passage]) -> Results:
    """Passages as the answer of a search."""
    return Results(plan, tuple(passages))
