"""Fusion orders by weighted ranks or scores, the same way every time."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidInput
from operators.fuse import FuseConfig, Fusion
from operators.messages import Leg, Plan, Ranking

fuse = Fusion(FuseConfig(k=60))  # the k of the hand-worked numbers
BY_SCORES = Fusion(FuseConfig(method="scores"))


def plan_of(**weights):
    legs = tuple(Leg(name, weight, 100) for name, weight in weights.items())
    return Plan(question="q", strategy="hybrid", legs=legs, limit=10, rerank_candidates=50, language="en")


def ranking(leg, keys, scores=None, shard=0):
    scores = np.linspace(1, 0, len(keys)) if scores is None else scores
    return Ranking(leg, np.array(keys, np.int64), np.array(scores, np.float32), np.full(len(keys), shard, np.int32))


def scores_of(fused):
    return dict(zip(fused.keys.tolist(), fused.scores.tolist(), strict=True))


def test_rrf_adds_what_each_rank_is_worth():
    fused = fuse(plan_of(dense=1.0, lexical=1.0), ranking("dense", [7, 8, 9]), ranking("lexical", [8, 7]))
    # 7: (1/61 + 1/62) / (2/61); 8 the same, so the smaller key is first; 9: (1/63) / (2/61)
    assert fused.keys.tolist() == [7, 8, 9]
    assert fused.scores == pytest.approx([0.991935, 0.991935, 0.484127], abs=1e-6)
    assert fused.ranks == {"dense": [1, 2, 3], "lexical": [2, 1, 0]}


def test_rrf_weights_decide_between_legs():
    dense, lexical = ranking("dense", [1, 2]), ranking("lexical", [2, 1])
    # weights 3 and 1: key 1 (3/61 + 1/62) / (4/61), key 2 (3/62 + 1/61) / (4/61)
    fused = fuse(plan_of(dense=3.0, lexical=1.0), dense, lexical)
    assert scores_of(fused) == pytest.approx({1: 0.995968, 2: 0.987903}, abs=1e-6)
    assert fuse(plan_of(dense=1.0, lexical=3.0), dense, lexical).keys.tolist() == [2, 1]


def test_a_smaller_k_favours_first_places():
    dense, lexical = ranking("dense", [1, 9, 2]), ranking("lexical", [3, 9, 4])
    plan = plan_of(dense=1.0, lexical=1.0)
    assert Fusion(FuseConfig(k=60))(plan, dense, lexical).keys[0] == 9  # 2/62 against 1/61
    sharp = Fusion(FuseConfig(k=0))(plan, dense, lexical)
    assert sharp.keys.tolist() == [1, 3, 9, 2, 4]
    assert sharp.scores == pytest.approx([1 / 2, 1 / 2, 1 / 2, 1 / 6, 1 / 6])


def test_first_in_every_leg_scores_one():
    plan = plan_of(dense=0.3, lexical=0.7)
    for fusion in (Fusion(), BY_SCORES):
        fused = fusion(plan, ranking("dense", [5, 6]), ranking("lexical", [5, 4]))
        assert scores_of(fused)[5] == 1.0


def test_a_leg_that_found_nothing_still_counts_in_the_normalisation():
    fused = fuse(plan_of(dense=1.0, lexical=1.0), ranking("dense", [5]), ranking("lexical", []))
    assert scores_of(fused) == {5: 0.5}
    assert fused.ranks == {"dense": [1], "lexical": [0]}


def test_no_hits_and_no_rankings_give_an_empty_ranking():
    plan = plan_of(dense=1.0)
    for fused in (fuse(plan), fuse(plan, ranking("dense", [])), BY_SCORES(plan, ranking("dense", []))):
        assert (len(fused.keys), len(fused.scores), len(fused.shards)) == (0, 0, 0)
        assert (fused.keys.dtype, fused.scores.dtype, fused.shards.dtype) == (np.int64, np.float32, np.int32)
        assert fused.ranks == {"dense": []}


@pytest.mark.parametrize("plan", [plan_of(dense=1.0), plan_of(dense=1.0, lexical=0.0)])
def test_a_leg_of_weight_zero_or_outside_the_plan_is_left_out(plan):
    fused = fuse(plan, ranking("dense", [1]), ranking("lexical", [2]))
    assert fused.keys.tolist() == [1]
    assert fused.ranks == {"dense": [1]}


def test_one_leg_keeps_its_order():
    assert fuse(plan_of(dense=1.0), ranking("dense", [9, 3, 7])).keys.tolist() == [9, 3, 7]


def test_scores_are_scaled_per_leg_and_averaged_by_weight():
    dense = ranking("dense", [1, 2, 3], [0.9, 0.8, 0.4])  # scaled 1, 0.8, 0
    lexical = ranking("lexical", [2, 4], [12.0, 2.0])  # scaled 1, 0
    fused = BY_SCORES(plan_of(dense=3.0, lexical=1.0), dense, lexical)
    assert fused.keys.tolist() == [2, 1, 3, 4]
    assert fused.scores == pytest.approx([(3 * 0.8 + 1) / 4, 3 / 4, 0, 0])
    assert fused.ranks == {"dense": [2, 1, 3, 0], "lexical": [1, 0, 0, 2]}


@pytest.mark.parametrize("scores", [[0.2], [-5.0], [0.0]])
def test_a_single_hit_counts_as_its_leg_s_best(scores):
    assert scores_of(BY_SCORES(plan_of(dense=1.0), ranking("dense", [1], scores))) == {1: 1.0}


def test_hits_that_are_all_equal_count_as_their_leg_s_best():
    assert scores_of(BY_SCORES(plan_of(dense=1.0), ranking("dense", [2, 1], [0.3, 0.3]))) == {1: 1.0, 2: 1.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_not_finite_is_refused_by_leg(bad):
    with pytest.raises(InvalidInput, match="leg 'dense'"):
        BY_SCORES(plan_of(dense=1.0), ranking("dense", [1, 2], [bad, 0.1]))


def test_shards_stay_with_their_keys():
    fused = fuse(plan_of(dense=1.0, lexical=1.0), ranking("dense", [1], shard=3), ranking("lexical", [2], shard=5))
    assert dict(zip(fused.keys.tolist(), fused.shards.tolist(), strict=True)) == {1: 3, 2: 5}


def test_a_key_that_a_leg_repeats_counts_where_it_stands_first():
    fused = fuse(plan_of(dense=1.0), ranking("dense", [1, 2, 1]))
    assert fused.ranks == {"dense": [1, 2]}
    assert fused.scores == pytest.approx([1, 61 / 62])


def test_a_leg_that_comes_twice_is_refused():
    with pytest.raises(InvalidInput, match="merge its shards before fusing"):
        fuse(plan_of(dense=1.0), ranking("dense", [1]), ranking("dense", [2]))


@pytest.mark.parametrize("settings", [{"method": "sum"}, {"k": -1}, {"k": 1.5}, {"k": True}])
def test_a_configuration_out_of_range_is_refused(settings):
    with pytest.raises(InvalidInput, match=r"fuse\."):
        FuseConfig(**settings)


NAMES = ["a", "b", "c", "d"]
KEYS = st.lists(st.integers(0, 30), unique=True, max_size=12)
WEIGHTS = st.just(0.0) | st.floats(1e-9, 10)  # divided by hand, the least of all numbers would be 0


@st.composite
def legs_and_weights(draw):
    rankings = []
    for name in NAMES[: draw(st.integers(1, 4))]:
        keys = draw(KEYS)
        drawn = draw(st.lists(st.floats(-1e3, 1e3, width=32), min_size=len(keys), max_size=len(keys)))
        rankings.append(ranking(name, keys, sorted(drawn, reverse=True)))
    return rankings, {leg.leg: draw(WEIGHTS) for leg in rankings}


def naive_rrf(plan, rankings, k=60):
    totals = {}
    for leg in rankings:
        weight = plan.leg(leg.leg).weight
        for rank, key in enumerate(leg.keys.tolist(), 1):
            if weight:
                totals[key] = totals.get(key, 0.0) + weight / (k + rank)
    best = sum(leg.weight for leg in plan.legs) / (k + 1)
    return {key: total / best for key, total in totals.items()}


@given(legs_and_weights())
def test_rrf_equals_its_definition(drawn):
    rankings, weights = drawn
    plan = plan_of(**weights)
    assert scores_of(fuse(plan, *rankings)) == pytest.approx(naive_rrf(plan, rankings), rel=1e-6)


@given(legs_and_weights(), st.sampled_from([Fusion(), Fusion(FuseConfig(k=0)), BY_SCORES]))
def test_every_fusion_is_sorted_and_within_zero_and_one(drawn, fusion):
    rankings, weights = drawn
    fused = fusion(plan_of(**weights), *rankings)
    rows = list(zip((-fused.scores).tolist(), fused.keys.tolist(), strict=True))
    assert rows == sorted(rows)
    assert ((fused.scores >= 0) & (fused.scores <= 1)).all()
    held = set(itertools.chain.from_iterable(r.keys.tolist() for r in rankings if weights[r.leg]))
    assert sorted(fused.keys.tolist()) == sorted(held)


@given(legs_and_weights(), st.randoms(use_true_random=False), st.sampled_from([Fusion(), BY_SCORES]))
def test_the_order_of_legs_does_not_matter(drawn, random, fusion):
    rankings, weights = drawn
    plan, shuffled = plan_of(**weights), rankings.copy()
    random.shuffle(shuffled)
    ours, theirs = fusion(plan, *rankings), fusion(plan, *shuffled)
    assert ours.keys.tolist() == theirs.keys.tolist()
    assert ours.scores.tolist() == theirs.scores.tolist()
    assert ours.ranks == theirs.ranks


@given(KEYS.filter(lambda keys: len(keys) > 1), st.randoms(use_true_random=False), WEIGHTS, st.floats(0.01, 10))
def test_a_heavier_leg_never_demotes_what_it_prefers(keys, random, weight, more):
    other = keys.copy()
    random.shuffle(other)
    light = fuse(plan_of(a=weight, b=1.0), ranking("a", keys), ranking("b", other))
    heavy = fuse(plan_of(a=weight + more, b=1.0), ranking("a", keys), ranking("b", other))
    best = keys[0]
    assert scores_of(heavy)[best] >= scores_of(light)[best]
    assert heavy.keys.tolist().index(best) <= light.keys.tolist().index(best)


@given(
    st.lists(st.permutations(range(40)), min_size=2, max_size=2),
    st.lists(st.integers(0, 40), min_size=2, max_size=2),
    st.integers(1, 12),
    st.sampled_from([Fusion(), BY_SCORES]),
)
@settings(deadline=None)
def test_each_page_is_cut_from_the_same_order_however_deep_the_legs_were_fetched(orders, lengths, at_once, fusion):
    plan = msgspec.structs.replace(plan_of(dense=1.0, lexical=0.5), candidates=at_once)
    legs = {"dense": orders[0][: lengths[0]], "lexical": orders[1][: lengths[1]]}
    before: list[int] = []
    for depth in (at_once << doubled for doubled in range(7)):
        fused = fusion(plan, *(ranking(leg, keys[:depth], np.arange(40, 0, -1)[: len(keys[:depth])])
                               for leg, keys in legs.items()))  # fmt: skip
        assert fused.keys.tolist()[: len(before)] == before
        assert set(fused.keys.tolist()) == {key for keys in legs.values() for key in keys[:depth]}
        assert (np.diff(fused.scores) <= 0).all()
        assert all(len(ranks) == len(fused.keys) for ranks in fused.ranks.values())
        before = fused.keys.tolist()
    assert sorted(before) == sorted({key for keys in legs.values() for key in keys})
