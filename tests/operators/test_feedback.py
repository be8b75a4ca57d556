from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InvalidInput
from operators.feedback import FeedbackConfig, refine, seeds
from operators.messages import Plan, Question, Ranking, Settings
from operators.plan_question import plan_question

CONFIG = FeedbackConfig(passages=2, weight=1.0)


def ranking(*keys: int) -> Ranking:
    n = len(keys)
    return Ranking("fused", np.array(keys, np.int64), np.linspace(1, 0.1, n).astype(np.float32), np.zeros(n, np.int32))


def plan(*legs: str, measure: str = "") -> Plan:
    return plan_question(Question("who?", Settings(legs=dict.fromkeys(legs, 1.0), measure=measure)))


def test_the_first_hits_are_the_seeds():
    hybrid = plan("dense", "lexical")
    assert seeds(hybrid, ranking(5, 3, 9), config=CONFIG).keys.tolist() == [5, 3]
    assert seeds(hybrid, ranking(5), config=CONFIG).keys.tolist() == [5]
    assert len(seeds(hybrid, ranking(), config=CONFIG).keys) == 0


def test_what_is_nearest_to_the_question_itself_is_asked_for_by_the_dense_leg_alone_or_by_a_measure():
    for exact in (plan("dense"), plan("dense", "lexical", measure="l1")):
        assert len(seeds(exact, ranking(5, 3, 9), config=CONFIG).keys) == 0


def test_the_vector_moves_halfway_at_weight_one():
    moved = refine(np.float32([1, 0]), np.float32([[0, 1]]), config=CONFIG)
    np.testing.assert_allclose(moved, [2**-0.5, 2**-0.5], rtol=1e-6)
    assert moved.dtype == np.float32


def test_the_mean_of_several_passages_counts_as_one_direction():
    one = refine(np.float32([1, 0, 0]), np.float32([[0, 1, 0]]), config=CONFIG)
    two = refine(np.float32([1, 0, 0]), np.float32([[0, 1, 0], [0, 1, 0]]), config=CONFIG)
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_nothing_found_leaves_the_question_as_it_is():
    vector = np.float32([0.6, 0.8])
    assert refine(vector, np.zeros((0, 2), np.float32), config=CONFIG) is vector


def test_opposite_vectors_do_not_divide_by_zero():
    moved = refine(np.float32([1, 0]), np.float32([[-1, 0]]), config=CONFIG)
    assert np.isfinite(moved).all()


@pytest.mark.parametrize(("field", "value"), [("passages", -1), ("passages", 11), ("weight", 0.0), ("weight", 99.0)])
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(InvalidInput, match=field):
        FeedbackConfig(**{field: value})
