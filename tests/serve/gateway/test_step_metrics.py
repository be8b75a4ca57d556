"""Histograms of steps, by hand; and what a gateway tells of its stages."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from engine.clock import VirtualClock
from engine.graph import graph
from engine.scope import Loss, Scope
from engine.stage import Stage
from engine.step import step
from engine.trace import SKIPPED, Trace
from serve.gateway.step_metrics import Steps


class State:
    async def ask(self, n: int) -> int:
        return n


_ask = Stage("state", State).step(State.ask)


@step
def light(n: int) -> int:
    return n


@graph
def asking(n: int) -> int:
    return _ask(light(n))


@pytest.fixture
def steps():
    return Steps([asking])


@pytest.fixture
def value(steps):
    """The value of a sample of the graph."""
    registry = CollectorRegistry()
    registry.register(steps)

    def sample(name: str, step: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"graph": "asking", "step": step, **labels})

    return sample


def traced(*spans: tuple[object, ...]) -> Scope:
    scope = Scope(trace=Trace(VirtualClock()))
    for span in spans:
        scope.trace.record(*span)
    return scope


def test_a_calls_time_is_told_apart(steps, value):
    steps.add("asking", traced(("ask", 0.0, 0.1, 0.02, 0.05, "", 8), ("light", 0.0, 0.001, 0.0, 0.001)))
    steps.add("asking", traced(("ask", 0.0, 0.004, 0.0, 0.003)))
    assert value("headrace_step_queued_seconds_sum", "ask") == pytest.approx(0.02)
    assert value("headrace_step_served_seconds_sum", "ask") == pytest.approx(0.053)
    assert value("headrace_step_hop_seconds_sum", "ask") == pytest.approx(0.031)
    assert value("headrace_step_served_seconds_count", "ask") == 2
    assert value("headrace_step_batch_items_sum", "ask") == 8
    assert value("headrace_step_batch_items_count", "ask") == 1  # the second ran in none


def test_buckets_are_cumulative_and_take_their_own_bound_in(steps, value):
    for served in (0.0001, 0.005, 0.006, 99.0):
        steps.add("asking", traced(("ask", 0.0, served, 0.0, served)))
    counts = [value("headrace_step_served_seconds_bucket", "ask", le=le) for le in ("0.0001", "0.005", "30", "+Inf")]
    assert counts == [1, 2, 3, 4]


def test_a_light_step_has_neither_queue_nor_hop(steps, value):
    steps.add("asking", traced(("light", 0.0, 0.001, 0.0, 0.001)))
    assert value("headrace_step_served_seconds_count", "light") == 1
    assert value("headrace_step_hop_seconds_count", "light") is None


def test_what_was_skipped_took_nothing(steps, value):
    steps.add("asking", traced(("ask", 0.0, 0.0, 0.0, 0.0, SKIPPED)))
    assert value("headrace_step_served_seconds_count", "ask") is None


def test_what_was_done_without_is_counted(steps, value):
    scope = Scope()
    scope.losses += [Loss("ask", "state", (1,), (0.5,)), Loss("ask", "state", (0, 1), (0.5, 0.5))]
    steps.add("asking", scope)
    assert value("headrace_step_partial_total", "ask") == 2


def test_steps_of_another_graph_that_a_step_has_run_are_counted_too(steps, value):
    steps.add("asking", traced(("inner", 0.0, 0.2, 0.0, 0.1)))
    assert value("headrace_step_served_seconds_sum", "inner") == pytest.approx(0.1)
