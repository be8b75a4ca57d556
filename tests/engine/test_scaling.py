"""Seconds of queued work, and the replicas that they ask for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.backlog import Backlog
from engine.clock import VirtualClock
from engine.errors import GraphError
from engine.scaling import ByQueuedSeconds
from engine.stage import Scaling, Stage


async def test_a_backlog_falls_to_nothing_when_the_slots_suffice():
    clock = VirtualClock()
    backlog = Backlog(clock)
    backlog.seconds(outstanding=4, ended=0, slots=4)
    await clock.advance(1.0)
    assert backlog.seconds(outstanding=4, ended=4, slots=4) == 0.0


async def test_what_is_queued_behind_slow_work_is_long_even_before_anything_has_ended():
    clock = VirtualClock()
    backlog = Backlog(clock)
    backlog.seconds(outstanding=3, ended=0)
    await clock.advance(5.0)
    assert backlog.seconds(outstanding=3, ended=0) > 5.0


def context(queued, busy, now=2):
    metrics = {"queued_seconds": queued, "busy": busy} if queued is not None else {}
    return SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=now)


@pytest.mark.parametrize(
    ("queued", "busy", "wanted"),
    [
        ({"a": 7.0, "b": 2.0}, {"a": 1.0, "b": 1.0}, 5),
        ({"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}, 2),
        ({"a": 0.0, "b": 0.0}, {"a": 0.2, "b": 0.1}, 1),
        ({"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}, 0),
        (None, None, 2),
    ],
)
def test_replicas_follow_the_seconds_of_queued_work(queued, busy, wanted):
    assert ByQueuedSeconds(queued_s=2.0)(context(queued, busy)) == (wanted, {})


@pytest.mark.parametrize("wrong", [{"least": 0}, {"least": 3, "most": 2}, {"queued_s": 0.0}, {"down_after_s": -1.0}])
def test_a_scaling_out_of_range_is_refused(wrong):
    with pytest.raises(GraphError):
        Scaling(**wrong)


def test_a_stage_begins_within_its_scaling():
    assert Stage("model", dict, replicas=1, scaling=Scaling(least=2, most=3)).replicas == 2
    assert "2 to 3 replicas" in Stage("model", dict, scaling=Scaling(least=2, most=3)).describe()
