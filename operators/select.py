"""What is fetched: the head of a fused ranking, asked of the shards that hold it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from engine.scope import current_scope
from operators.corpus.keys import key_of_chunk_id
from operators.messages import Passage, Plan, Ranking, Results
from operators.partial import partial_of


def cut_to_limit(plan: Plan, ranking: Ranking) -> Ranking:
    """The hits whose texts are fetched: up to the end of the page, or all when a threshold will leave some out."""
    return ranking if plan.score_threshold is not None else head(ranking, plan.offset + plan.limit)


def cut_to_candidates(plan: Plan, ranking: Ranking) -> Ranking:
    """The hits that a reranker reads, and those up to the end of the page; all when a threshold leaves some out."""
    upto = max(plan.offset + plan.limit, plan.rerank_candidates)
    return ranking if plan.score_threshold is not None else head(ranking, upto)


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


def owners_of_fetch(shards: int, plan: Plan, vector: np.ndarray, ranking: Ranking) -> list[tuple[Any, ...] | None]:
    """As `owners`, for a fetch."""
    return [None if own is None else (plan, vector, ranking) for own in owners(shards, ranking)]


def as_ranked(ranking: Ranking, passages: list[Passage]) -> list[Passage]:
    """The passages that several shards fetched, in the ranking's order: equal scores do not tell it."""
    place_of = {key: place for place, key in enumerate(ranking.keys.tolist())}
    return sorted(passages, key=lambda passage: place_of[key_of_chunk_id(passage.chunk_id)])


def results(plan: Plan, passages: list[Passage]) -> Results:
    """The passages whose semantic score reaches the plan's threshold, whichever leg found them."""
    if plan.score_threshold is None:
        return Results(plan, tuple(passages))
    bar = plan.score_threshold
    return Results(plan, tuple(p for p in passages if p.semantic is not None and p.semantic >= bar))


def page(found: Results) -> Results:
    """The page that the plan asks for, of passages from the first one on, with what is to be shown of them.

    It says what it lacks, if the request had to do without some shards.
    """
    plan = found.plan
    passages = found.passages[plan.offset : plan.offset + plan.limit]
    if not plan.include_scores:
        passages = tuple(msgspec.structs.replace(p, score=None, semantic=None, ranks={}) for p in passages)
    if not plan.include_metadata:
        passages = tuple(msgspec.structs.replace(p, metadata={}) for p in passages)
    return Results(plan, passages, partial_of(current_scope()))
