from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.fuse_results import fuse_results
from operators.messages import Leg, Passage, Plan, Results

PLAN = Plan(
    question="?",
    strategy="hybrid",
    legs=(Leg("dense", 1.0, 100),),
    limit=20,
    rerank_candidates=50,
    language="en",
)


def found(names, *, semantic=None, plan=PLAN):
    return Results(plan, tuple(a_passage(name, semantic=semantic) for name in names))


def a_passage(name, *, semantic=None):
    return Passage(
        chunk_id=f"{name}#0",
        document_id=name,
        title="",
        text=name,
        start=0,
        end=len(name),
        score=0.5,
        semantic=semantic,
        ranks={"dense": 1},
    )


def names(results):
    return "".join(p.document_id for p in results.passages)


def test_one_list_keeps_its_order_and_its_best_scores_1():
    fused = fuse_results([found("abc")], limit=10)
    assert names(fused) == "abc"
    assert [p.score for p in fused.passages] == pytest.approx([1, 61 / 62, 61 / 63])


def test_a_passage_of_two_lists_comes_before_one_that_leads_one():
    fused = fuse_results([found("ax"), found("bx")], limit=10)
    assert names(fused) == "xab"
    assert [p.score for p in fused.passages] == pytest.approx([61 / 62, 0.5, 0.5])


def test_lists_that_found_nothing_do_not_lower_scores():
    fused = fuse_results([found("ab"), found(""), found("ab")], limit=10)
    assert [p.score for p in fused.passages] == pytest.approx([1, 61 / 62])


def test_the_limit_cuts_after_fusion_and_becomes_the_plans():
    fused = fuse_results([found("abc"), found("cba")], limit=2)
    assert (names(fused), fused.plan.limit) == ("ac", 2)


def test_nothing_found_gives_nothing():
    assert fuse_results([found(""), found("")], limit=3).passages == ()


def test_without_a_search_there_is_no_plan():
    with pytest.raises(ValueError, match="at least one search"):
        fuse_results([], limit=3)


def test_the_semantic_score_is_the_highest_of_any_wording():
    fused = fuse_results([found("ab", semantic=0.2), found("a", semantic=0.7), found("b")], limit=3)
    assert {p.document_id: p.semantic for p in fused.passages} == {"a": 0.7, "b": 0.2}
    assert fuse_results([found("a")], limit=3).passages[0].semantic is None


def test_scores_that_were_not_asked_for_are_not_given():
    plan = msgspec.structs.replace(PLAN, include_scores=False)
    fused = fuse_results([found("ab", plan=plan)], limit=3)
    assert [p.score for p in fused.passages] == [None, None]


ORDERS = st.lists(st.permutations("abcdef").map(lambda p: p[:4]), min_size=1, max_size=9)


@given(ORDERS)
def test_scores_are_above_0_at_most_1_and_fall(orders):
    scores = [p.score for p in fuse_results([found(order) for order in orders], limit=10).passages]
    assert all(0 < score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)


@given(ORDERS, st.randoms())
def test_the_order_of_the_lists_changes_no_score(orders, rng):
    shuffled = list(orders)
    rng.shuffle(shuffled)
    scores = [
        {p.chunk_id: p.score for p in fuse_results([found(order) for order in lists], limit=10).passages}
        for lists in (orders, shuffled)
    ]
    assert scores[0] == scores[1]
