"""A policy says what is wrong with it, how long a step may take, and what it does in words."""

from __future__ import annotations

import pytest

from engine.errors import GraphError
from engine.policy import ONCE, Policy


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hedged": 0.1}, "may not be run twice"),
        ({"hedged": 1.5, "idempotent": True}, r"hedged is 1\.5"),
        ({"coverage": -0.1}, "coverage is -0.1"),
        ({"time": 0}, "time is 0"),
        ({"time_s": 0.0}, r"time_s is 0\.0"),
        ({"below": "shrug"}, "below is 'shrug'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong, said):
    with pytest.raises(GraphError, match=said):
        Policy(**wrong)


def test_a_step_takes_a_share_of_the_time_and_no_more_than_its_own_limit():
    assert ONCE.seconds(None) is None
    assert Policy(time_s=0.04).seconds(None) == 0.04
    assert Policy(time=0.5, time_s=0.04).seconds(1.0) == 0.04
    assert Policy(time=0.5, time_s=0.04).seconds(0.02) == 0.01


def test_a_policy_is_described_for_people():
    policy = Policy(idempotent=True, hedged=0.05, time=0.4, time_s=0.04, coverage=0.75, below="degrade")
    assert policy.describe() == (
        "may be run twice, 5% hedged, 40% of the time, at most 40 ms, 75% will do, else degrade"
    )
    assert ONCE.describe() == ""
