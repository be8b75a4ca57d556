"""Fan-out: an answer without some shards says which are missing and what the others cover, or there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import ClassVar

import pytest

from engine.errors import DeadlineExceeded, Incomplete, InvalidInput, StageDied, StepFailed
from engine.graph import graph
from engine.host import Host
from engine.policy import Policy
from engine.pool import Pool
from engine.replicas import Replicas
from engine.run import Running, Session
from engine.scope import Loss, Scope, current_scope
from engine.stage import Stage
from engine.step import step
from engine.stream import Stream
from engine.trace import Trace
from engine.transport import LocalTransport


class Part:
    """A shard that answers, sleeps until it is cancelled, dies, or fails, as its number says."""

    behaviour: ClassVar[dict[int, str]] = {}

    def __init__(self, number: int) -> None:
        self.number = number
        self.weight = float(10 + number)
        self.epoch = 100 + number
        self.idle = asyncio.Event()

    async def find(self, n: int) -> list[int]:
        behaviour = self.behaviour.get(self.number, "answer")
        if behaviour == "sleep":
            try:
                await asyncio.Event().wait()
            finally:
                self.idle.set()
        if behaviour == "die":
            raise StageDied(f"shard {self.number} is gone")
        if behaviour == "refuse":
            raise InvalidInput("no such thing")
        if behaviour == "fail":
            raise ZeroDivisionError
        return [n * 100 + self.number]


def joined(parts: list[list[int]]) -> list[int]:
    return [n for part in parts for n in part]


def drawn(policy: Policy, shards: int = 4):
    stage = Stage("part", Part, shards=shards)
    find = stage.gather(Part.find, joined, policy=policy)

    @step
    def seen(found: list[int]) -> tuple[list[int], list[Loss]]:
        return found, current_scope().losses

    @graph
    def look(n: int) -> tuple[list[int], list[Loss]]:
        return seen(find(n))

    return look


@pytest.fixture
def behave(monkeypatch):
    def set_(**by_number: str) -> None:
        monkeypatch.setattr(Part, "behaviour", {int(k[1:]): v for k, v in by_number.items()})

    set_()
    return set_


@pytest.fixture
async def session():
    made = Session()
    yield made
    await made.aclose()


LOSES = Policy(time_s=0.03, coverage=0.5)


async def test_all_that_answer_are_merged_in_shard_order_and_nothing_is_missing(behave, session):
    ask = await session.start(drawn(LOSES))
    assert await ask(1) == ([100, 101, 102, 103], [])


async def test_a_shard_that_sleeps_for_ever_costs_the_budget_and_is_named(behave, session):
    ask = await session.start(drawn(LOSES))
    await ask(1)  # the weights are known from now on
    behave(_2="sleep")
    scope = Scope(trace=Trace())
    found, losses = await ask.within(scope)(1)
    assert found == [100, 101, 103]
    assert losses == [Loss("find", "part", (2,), (pytest.approx(12 / 46),))]
    assert "without shards 2" in scope.trace.notes[0]
    assert ask.outstanding == 0


async def test_the_budget_is_a_share_of_the_requests_time(behave, session):
    behave(_1="sleep")
    ask = await session.start(drawn(Policy(time=0.05, coverage=0.5)))
    found, losses = await ask.within(Scope(timeout_s=1.0))(1)
    assert (found, losses[0].shards) == ([100, 102, 103], (1,))


async def test_a_dead_shard_is_missing_at_once(behave, session):
    ask = await session.start(drawn(Policy(coverage=0.5)))
    behave(_0="die", _3="die")
    found, losses = await ask(1)
    assert (found, losses[0].shards) == ([101, 102], (0, 3))


async def test_below_the_coverage_asked_for_there_is_no_answer(behave, session):
    ask = await session.start(drawn(LOSES))
    await ask(1)
    behave(_0="die", _1="die", _2="die")
    with pytest.raises(Incomplete, match="shards 0, 1, 2 of stage 'part'") as caught:
        await ask(1)
    assert (caught.value.shards, caught.value.coverage) == ((0, 1, 2), pytest.approx(13 / 46))


async def test_or_a_degraded_one_if_that_was_asked_for_but_never_one_of_nothing(behave, session):
    ask = await session.start(drawn(Policy(coverage=0.9, below="degrade")))
    behave(_0="die", _1="die", _2="die")
    found, losses = await ask(1)
    assert (found, losses[0].shards) == ([103], (0, 1, 2))
    behave(_0="die", _1="die", _2="die", _3="die")
    with pytest.raises(StageDied, match="shard 0"):
        await ask(1)


@pytest.mark.parametrize(("how", "error"), [("refuse", InvalidInput), ("fail", StepFailed)])
async def test_what_every_shard_would_say_is_no_loss(behave, session, how, error):
    behave(_1=how)
    ask = await session.start(drawn(LOSES))
    with pytest.raises(error):
        await ask(1)


async def test_without_a_policy_one_dead_shard_fails_the_step(behave, session):
    behave(_1="die")
    ask = await session.start(drawn(Policy()))
    with pytest.raises(StageDied):
        await ask(1)


async def test_a_step_that_loses_nothing_still_has_its_time(behave, session):
    behave(_0="sleep")
    stage = Stage("alone", Part, shards=1)
    found = stage.step(Part.find, policy=Policy(time_s=0.02))

    @graph
    def look(n: int) -> list[int]:
        return found(n)

    for drawing in (look, drawn(Policy(time_s=0.02))):
        ask = await session.start(drawing)
        with pytest.raises(DeadlineExceeded):
            await ask(1)
        assert ask.outstanding == 0


async def test_a_shard_that_never_answered_counts_as_much_as_the_mean(behave, session):
    behave(_3="die")
    ask = await session.start(drawn(LOSES))
    _, losses = await ask(1)
    assert losses[0].shares == (0.25,)


async def test_cancelling_the_request_cancels_every_shard(behave, session):
    behave(_0="sleep", _1="sleep")
    ask = await session.start(drawn(LOSES))
    running = asyncio.create_task(ask(1))
    await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ask.outstanding == 0


async def test_the_scope_knows_with_which_state_of_the_data_each_shard_answered(behave):
    look = drawn(Policy(), shards=2)
    (stage,) = look.stages
    shards = [[Part(0)], [Part(1), Part(1)]]
    shards[1][1].epoch = 7
    pool = Pool(stage, [Replicas([LocalTransport(Host(part)) for part in parts]) for parts in shards])
    ask, scope = Running(look, {stage: pool}), Scope()
    await ask.within(scope)(1)
    assert scope.epochs == {("part", 0): {100}, ("part", 1): {101}}
    pool.shards[1].take()  # so the next call goes to the other copy
    await ask.within(scope)(1)
    assert scope.epochs == {("part", 0): {100}, ("part", 1): {101, 7}}


class Model:
    """A producer that dies after so many items."""

    def __init__(self, name: str, dies_after: int | None) -> None:
        self.name = name
        self.dies_after = dies_after
        self.began = 0

    async def say(self, n: int) -> AsyncIterator[str]:
        self.began += 1
        for i in range(n):
            if i == self.dies_after:
                raise StageDied(f"{self.name} is gone")
            yield f"{self.name}{i}"


def models(*dies_after: int | None, policy: Policy = Policy(idempotent=True)):  # noqa: B008 - immutable
    stage = Stage("model", partial(Model, "", None))
    say = stage.step(Model.say, policy=policy)

    @graph
    def talk(n: int) -> Stream[str]:
        return say(n)

    states = [Model(name, dies) for name, dies in zip("ab", dies_after, strict=False)]
    pool = Pool(stage, [Replicas([LocalTransport(Host(state)) for state in states])])
    return Running(talk, {stage: pool}), states


async def test_a_stream_whose_producer_dies_before_the_first_item_begins_anew_on_a_sibling():
    ask, (dead, alive) = models(0, None)
    assert [item async for item in await ask(3)] == ["b0", "b1", "b2"]
    assert [item async for item in await ask(2)] == ["b0", "b1"]
    assert (dead.began, alive.began, ask.outstanding) == (1, 2, 0)


async def test_a_stream_that_has_begun_is_never_continued_by_another_producer():
    ask, (_, alive) = models(2, None)
    heard = []
    with pytest.raises(StageDied, match="a is gone"):
        async for item in await ask(5):
            heard.append(item)
    assert heard == ["a0", "a1"]
    assert (alive.began, ask.outstanding) == (0, 0)


@pytest.mark.parametrize(("dies", "policy"), [((0, 0), Policy(idempotent=True)), ((0,), Policy(idempotent=True)),
                                              ((0, None), Policy())])  # fmt: skip
async def test_a_stream_without_a_living_sibling_or_leave_to_try_fails(dies, policy):
    ask, _ = models(*dies, policy=policy)
    with pytest.raises(StageDied, match="is gone"):
        _ = [item async for item in await ask(5)]
    assert ask.outstanding == 0


def test_policies_show_in_the_graphs_picture_and_hash():
    assert "every shard, at most 30 ms, 50% will do, else fail" in drawn(LOSES).explain()
    assert drawn(LOSES).hash != drawn(Policy()).hash
