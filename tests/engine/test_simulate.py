"""The simulation agrees with queueing theory where there is a formula, and with the graph's shape."""

from __future__ import annotations

import random

import pytest

from engine.errors import InvalidInput
from engine.graph import graph
from engine.policy import Policy
from engine.simulate import CALLER, Place, Times, simulate, times_of
from engine.stage import Stage
from engine.step import step
from engine.trace import Trace


class Work:
    async def do(self, n: int) -> int:
        return n

    async def other(self, n: int) -> int:
        return n


@step
def add(a: int, b: int) -> int:
    return a + b


work = Stage("work", Work, shards=2)
side = Stage("side", Work)
do, other = work.gather(Work.do, sum), side.step(Work.other)


@graph
def single(n: int) -> int:
    return other(n)


@graph
def fork(n: int) -> int:
    return add(do(n), other(n))


@graph
def chain(n: int) -> int:
    return other(do(n))


def exponential(mean: float) -> Times:
    chance = random.Random(5)
    return Times(tuple(chance.expovariate(1 / mean) for _ in range(20_000)))


def test_one_server_with_random_arrivals_waits_as_theory_says():
    """M/M/1 at 70 %: the time in the system is exponential with mean 1 / (mu - lambda)."""
    found = simulate(single, {"other": exponential(0.01)}, {}, rate=70, requests=60_000, seed=1)
    mean = 1 / (100 - 70)
    assert found.p50_s == pytest.approx(0.693 * mean, rel=0.08)
    assert found.p99_s == pytest.approx(4.605 * mean, rel=0.12)
    assert found.busy["side"] == pytest.approx(0.7, rel=0.03)
    assert found.rate == pytest.approx(70, rel=0.03)


def test_two_slots_or_two_replicas_carry_twice_the_load():
    times = {"other": Times((0.01,))}
    for place in (Place(slots=2), Place(replicas=2)):
        found = simulate(single, times, {"side": place}, clients=2, requests=1000)
        assert found.rate == pytest.approx(200, rel=0.01)
        assert (found.p50_s, found.p99_s) == (pytest.approx(0.01), pytest.approx(0.01))
    assert simulate(single, times, {}, clients=2, requests=1000).rate == pytest.approx(100, rel=0.01)


def test_a_fork_takes_as_long_as_its_slower_side_and_a_chain_as_both():
    times = {"do": Times((0.02,)), "other": Times((0.05,)), "add": Times((0.001,))}
    assert simulate(fork, times, {}, clients=1, requests=10).p50_s == pytest.approx(0.051)
    assert simulate(chain, times, {}, clients=1, requests=10).p50_s == pytest.approx(0.07)


def test_a_gathered_step_waits_for_the_slowest_of_its_shards():
    """The expected largest of n exponentials is the mean times 1 + 1/2 + ... + 1/n."""
    places = {"work": Place(shards=100)}
    found = simulate(chain, {"do": exponential(0.01)}, places, clients=1, requests=3000, seed=2)
    expected = 0.01 * sum(1 / n for n in range(1, 101))
    assert 1 / found.rate == pytest.approx(expected, rel=0.05)


def test_a_policy_with_a_time_makes_late_shards_partial_answers():
    quick = Stage("work", Work, shards=8)
    found_by = quick.gather(Work.do, sum, policy=Policy(time_s=0.04, coverage=0.5))

    @graph
    def hurried(n: int) -> int:
        return found_by(n)

    times = {"do": Times((0.001,) * 97 + (0.2,) * 3)}
    found = simulate(hurried, times, {"work": Place(shards=8, slots=100)}, rate=20, requests=5000, seed=3)
    assert found.p99_s == pytest.approx(0.04)
    assert found.partial == pytest.approx(1 - 0.97**8, abs=0.02)


def test_hops_cost_time_and_no_slot():
    times = {"other": Times((0.001,), (0.01,))}
    found = simulate(single, times, {}, clients=5, requests=1000)
    assert found.p50_s == pytest.approx(0.011, rel=0.01)
    assert found.rate == pytest.approx(5 / 0.011, rel=0.01)


def test_light_steps_take_turns_in_the_caller():
    times = {"add": Times((0.01,))}
    found = simulate(fork, times, {}, clients=4, requests=1000)
    assert found.rate == pytest.approx(100, rel=0.01)
    assert found.busy[CALLER] == pytest.approx(1)


def test_costs_are_those_of_all_copies():
    places = {"work": Place(shards=3, replicas=2, cost=0.5), "side": Place(cost=2.0)}
    found = simulate(chain, {"other": Times((0.01,))}, places, clients=1, requests=1000)
    assert found.cost_an_hour == 5.0
    assert found.cost_of_1000 == pytest.approx(5.0 / 3600 * 1000 / 100, rel=0.01)


def test_equal_seeds_give_equal_forecasts():
    times = {"other": exponential(0.01)}
    one, two, three = (simulate(single, times, {}, rate=50, requests=500, seed=s) for s in (4, 4, 5))
    assert one == two != three


def test_a_thousand_shards_are_no_trouble():
    found = simulate(
        chain, {"do": Times((0.002, 0.003))}, {"work": Place(shards=1000, replicas=2)}, rate=10, requests=50
    )
    assert found.p50_s == pytest.approx(0.003)


def test_times_come_from_traces_and_skipped_steps_have_none():
    trace = Trace()
    trace.record("embed", 0.0, 0.010, 0.001, 0.007)
    trace.record("dense", 0.0, 0.010, 0.0, 0.0, "skipped: not asked for")
    found = times_of([trace.spans, trace.spans])
    assert set(found) == {"embed"}
    assert found["embed"].served == (0.007, 0.007)
    assert found["embed"].hop == (pytest.approx(0.002),) * 2


@pytest.mark.parametrize(
    "wrong", [{}, {"rate": 1, "clients": 1}, {"rate": 0}, {"clients": -1}, {"rate": 1, "requests": 3}]
)
def test_a_load_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidInput):
        simulate(single, {}, {}, **wrong)
    with pytest.raises(InvalidInput, match="replicas is 0"):
        Place(replicas=0)
