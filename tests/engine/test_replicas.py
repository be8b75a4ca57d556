"""Replicas: slow calls are hedged within their share, a dead replica's call is made again, dead ones are left alone."""

from __future__ import annotations

import asyncio

import pytest

from engine.clock import VirtualClock
from engine.errors import DeadlineExceeded, InvalidInput, StageDied
from engine.host import Answer
from engine.method import Method
from engine.policy import Policy
from engine.replicas import Bucket, Replicas
from engine.scope import Scope

METHOD = Method("search", tuple[int], int, False)
TWICE = Policy(idempotent=True)
HEDGED = Policy(idempotent=True, hedged=1.0)


class Scripted:
    """A transport that does to each call what the test says: branches that no real one reaches on demand."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = self.cancelled = 0
        self.dead = self.slow = False
        self.error: Exception | None = None

    async def call(self, method, args, scope):
        self.calls += 1
        if self.dead:
            raise StageDied(f"{self.name} is gone")
        if self.error is not None:
            raise self.error
        try:
            await asyncio.sleep(60 if self.slow else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Answer(self.name, 0.0, 0.001)


@pytest.fixture
def copies():
    return [Scripted("a"), Scripted("b")]


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def replicas(copies, clock):
    return Replicas(copies, clock=clock)


async def asked(replicas, policy=TWICE):
    return (await replicas.call(METHOD, [1], Scope(), policy)).value


async def warmed(replicas, policy=HEDGED):
    """So many quick calls that slow ones can be told from them."""
    for _ in range(40):
        await asked(replicas, policy)


async def test_a_call_whose_replica_died_is_made_again_on_its_sibling(copies, replicas):
    copies[0].dead = True
    assert await asked(replicas) == "b"
    assert (replicas.counters.died, replicas.counters.retried, replicas.outstanding) == (1, 1, 0)


async def test_a_call_that_may_not_be_run_twice_is_not(copies, replicas):
    copies[0].dead = True
    with pytest.raises(StageDied, match="a is gone"):
        await asked(replicas, Policy())
    assert copies[1].calls == 0


async def test_when_both_died_the_failure_is_told(copies, replicas):
    copies[0].dead = copies[1].dead = True
    with pytest.raises(StageDied):
        await asked(replicas)
    assert (copies[0].calls, copies[1].calls) == (1, 1)


async def test_an_error_of_the_method_is_not_tried_again(copies, replicas):
    copies[0].error = InvalidInput("no such leg")
    with pytest.raises(InvalidInput):
        await asked(replicas)
    assert copies[1].calls == 0


async def test_a_dead_replica_is_left_alone_then_tried_with_one_call_and_used_again_when_it_lives(
    copies, clock, replicas
):
    copies[0].dead = True
    for _ in range(20):
        assert await asked(replicas) == "b"
    assert copies[0].calls == 1
    await clock.advance(0.6)
    await asked(replicas)
    await asked(replicas)
    assert copies[0].calls == 2  # the trial failed, and now it is left alone for longer
    copies[0].dead = False
    await clock.advance(1.1)
    assert await asked(replicas) == "a"
    assert await asked(replicas) == "a"


async def test_only_one_call_at_a_time_tries_a_replica_that_was_dead(copies, clock, replicas):
    copies[0].dead = True
    await asked(replicas)
    await clock.advance(0.6)
    copies[0].dead, copies[0].slow = False, True
    trial = asyncio.create_task(asked(replicas))
    await asyncio.sleep(0)
    assert {await asked(replicas) for _ in range(5)} == {"b"}
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial


async def test_retries_are_a_share_of_the_calls_so_that_a_dying_pool_is_not_stormed(copies, clock, replicas):
    copies[0].dead = copies[1].dead = True
    failed = 0
    for _ in range(100):
        await clock.advance(60)
        with pytest.raises(StageDied):
            await asked(replicas)
        failed += 1
    assert failed == 100
    assert replicas.counters.retried <= 12


async def test_a_slow_call_is_hedged_on_the_sibling_and_the_loser_cancelled(copies, replicas):
    await warmed(replicas)
    copies[0].slow = True
    assert await asked(replicas, HEDGED) == "b"
    await asyncio.sleep(0)
    assert (replicas.counters.hedged, replicas.counters.hedges_won) == (1, 1)
    assert (copies[0].cancelled, replicas.outstanding) == (1, 0)


async def test_nothing_is_hedged_before_it_is_known_what_is_slow(copies, replicas):
    copies[0].slow = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asked(replicas, HEDGED), 0.02)
    assert (replicas.counters.hedged, copies[0].cancelled, replicas.outstanding) == (0, 1, 0)


async def test_hedges_are_no_more_than_their_share(copies, replicas):
    policy = Policy(idempotent=True, hedged=0.05)
    await warmed(replicas, policy)
    copies[0].slow = copies[1].slow = True
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asked(replicas, policy), 0.001)
    assert replicas.counters.hedged <= 1 + 60 * 0.05


async def test_the_busier_copy_gets_no_call(copies, replicas):
    copies[0].slow = True
    busy = asyncio.create_task(asked(replicas))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await asked(replicas) == "b"
    busy.cancel()
    with pytest.raises(asyncio.CancelledError):
        await busy


def test_a_bucket_saves_only_so_much():
    bucket = Bucket()
    for _ in range(1000):
        bucket.earn(0.5)
    assert sum(bucket.spend() for _ in range(100)) == 10


class Coming:
    """Copies that come and go."""

    def __init__(self, *copies: Scripted) -> None:
        self.copies = tuple(copies)

    def __call__(self):
        return self.copies


async def test_copies_that_come_are_asked_and_those_that_go_are_not(copies):
    coming = Coming(copies[0])
    replicas = Replicas(coming)
    assert [await asked(replicas) for _ in range(2)] == ["a", "a"]
    coming.copies = (copies[1],)
    assert await asked(replicas) == "b"
    assert replicas.transports == (copies[1],)


async def test_calls_at_a_copy_that_has_left_count_until_they_end(copies):
    coming = Coming(copies[0])
    replicas = Replicas(coming)
    copies[0].slow = True
    call = asyncio.create_task(asked(replicas))
    await asyncio.sleep(0.01)
    coming.copies = (copies[1],)
    assert await asked(replicas) == "b"
    assert replicas.outstanding == 1
    call.cancel()
    await asyncio.wait([call])
    await asyncio.sleep(0)
    assert replicas.outstanding == 0


async def test_a_call_that_may_be_run_twice_waits_for_a_copy_when_there_is_none(copies):
    coming = Coming()
    replicas = Replicas(coming)
    call = asyncio.create_task(asked(replicas))
    await asyncio.sleep(0.05)
    assert not call.done()
    coming.copies = (copies[0],)
    assert await call == "a"


async def test_it_waits_for_the_replacement_of_a_copy_that_died_under_it(copies):
    coming = Coming(copies[0])
    replicas = Replicas(coming)
    copies[0].dead = True
    call = asyncio.create_task(asked(replicas))
    await asyncio.sleep(0.05)
    coming.copies = (copies[0], copies[1])
    assert await call == "b"


async def test_it_waits_no_longer_than_its_request_lasts():
    with pytest.raises(DeadlineExceeded):
        await Replicas(Coming()).call(METHOD, [1], Scope(timeout_s=0.05), TWICE)


@pytest.mark.parametrize("policy", [Policy(), Policy(idempotent=True, coverage=0.5)])
async def test_who_may_not_be_run_twice_or_can_be_done_without_is_told_at_once(policy):
    with pytest.raises(StageDied, match="no replica of shard-3 lives"):
        await Replicas(Coming(), name="shard-3").call(METHOD, [1], Scope(), policy)
