from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from engine.errors import Cancelled, DeadlineExceeded, GraphError, InvalidInput, StepFailed
from engine.graph import graph
from engine.run import Session, run, start
from engine.scope import Scope, current_scope
from engine.stage import Stage
from engine.step import step
from engine.stream import Stream
from engine.trace import Trace
from tests.parts import Refuses, Shard, Workshop
from tests.until import until


@step
def double(n: int) -> int:
    return 2 * n


@step
def add(*numbers: int) -> int:
    return sum(numbers)


@step
async def request_id(n: int) -> str:
    await asyncio.sleep(0)
    return current_scope().id


def counting(*, isolated: bool = False, live: bool = False):
    shop = Stage("shop", Workshop, isolated=isolated)
    count = shop.step(Workshop.count_slowly, live=live)

    @step
    async def doubled(numbers: Stream[int]) -> AsyncIterator[int]:
        async for n in numbers:
            yield 2 * n

    @graph
    def stream(n: int) -> Stream[int]:
        return doubled(count(n))

    return stream


async def test_branches_run_at_once_and_meet():
    arrived = []

    @step
    async def meet(n: int) -> int:
        arrived.append(n)
        async with asyncio.timeout(1):
            while len(arrived) < 3:
                await asyncio.sleep(0)
        return n

    @graph
    def fan(n: int) -> int:
        d = double(n)
        return add(meet(d), meet(d), meet(d))

    async with start(fan) as running:
        assert await running(1) == 6


async def test_a_failing_branch_cancels_the_others_and_its_own_error_arrives():
    cancelled = []

    @step
    async def hang(n: int) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(n)
            raise
        return n

    @step
    async def fail(n: int) -> int:
        raise KeyError("gone")

    @graph
    def fan(n: int) -> int:
        return add(hang(n), fail(n), hang(n))

    async with start(fan) as running:
        with pytest.raises(StepFailed, match="step 'fail' failed: KeyError") as caught:
            await running.within(Scope("r7"))(1)
    assert caught.value.request_id == "r7"
    assert cancelled == [1, 1]
    assert running.active == 0


async def test_the_scope_reaches_every_step():
    @graph
    def who(n: int) -> str:
        return request_id(double(n))

    async with start(who) as running:
        assert await running.within(Scope("me"))(1) == "me"


async def test_a_deadline_ends_the_request():
    @step
    async def hang(n: int) -> int:
        await asyncio.Event().wait()
        return n

    @graph
    def slow(n: int) -> int:
        return hang(n)

    async with start(slow) as running:
        with pytest.raises(DeadlineExceeded, match="longer timeout"):
            await running.within(Scope(timeout_s=0.02))(1)


async def test_a_deadline_ends_a_stream_between_two_items():
    async with start(counting()) as running:
        got = []
        with pytest.raises(DeadlineExceeded):
            async for item in await running.within(Scope(timeout_s=0.3))(10_000_000):
                got.append(item)
        assert got[:3] == [0, 2, 4]
        assert (running.active, running.outstanding) == (0, 0)


async def test_a_cancelled_scope_ends_a_stream():
    scope = Scope()
    async with start(counting()) as running:
        with pytest.raises(Cancelled):
            async for item in await running.within(scope)(100_000):
                if item == 10:
                    scope.cancel()


async def test_a_condition_skips_a_step_and_the_trace_says_so():
    def wanted(n: int) -> bool:
        return n > 0

    shop = Stage("shop", Workshop)
    maybe = shop.step(Workshop.add).when(lambda a, b: a > 0, otherwise=-7)

    @graph
    def sometimes(n: int) -> int:
        return add(double.when(wanted, otherwise=0)(n), maybe(n, 1))

    async with start(sometimes) as running:
        assert await running(3) == 6 + 4
        trace = Trace()
        assert await running.within(Scope(trace=trace))(-3) == -7
    assert {s.step for s in trace.spans if s.note.startswith("skipped")} == {"double", "add"}


async def test_shards_answer_together_in_shard_order():
    shards = Stage("shards", Shard, shards=3)
    mine = shards.gather(Shard.mine, merge=lambda parts: [n for part in parts for n in part])

    @graph
    def all_of_them(offset: int) -> list[int]:
        return mine(offset)

    async with start(all_of_them) as running:
        assert await running(10) == [10, 11, 12]


async def test_one_failing_shard_fails_the_step_and_cancels_the_others():
    shards = Stage("shards", Shard, shards=3)
    step_ = shards.gather(Shard.fails_on_one, merge=lambda parts: sum(parts, []))

    @graph
    def all_of_them(offset: int) -> list[int]:
        return step_(offset)

    async with start(all_of_them) as running:
        with pytest.raises(StepFailed, match="torn index"):
            await running(1)
        assert running.outstanding == 0


@pytest.mark.parametrize("isolated", [False, True])
async def test_two_hundred_streams_cancelled_at_random_moments_leave_nothing_behind(isolated):
    rng = random.Random(3)
    async with start(counting(isolated=isolated)) as running:

        async def one():
            stream = await running(10_000)
            wanted = rng.randrange(0, 12)
            async for item in stream:
                if item >= 2 * wanted:
                    break
            await stream.aclose()

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(20)))
        assert (running.active, running.outstanding) == (0, 0)

        async def drained():
            streams = (await running.statistics())["shop"][0].streams
            return streams.open == 0

        await until(drained)
        mine = {t.get_name() for t in asyncio.all_tasks() if "Producer" in repr(t.get_coro())}
        assert not {m for m in mine if "_pump" in m}


async def test_stages_are_shared_in_a_session():
    shop = Stage("shop", Workshop)
    hang, counters = shop.step(Workshop.add), shop.step(Workshop.counters)

    @graph
    def one(n: int) -> int:
        return hang(n, 1)

    @step
    def made(c: dict[str, int]) -> int:
        return c["made"]

    @step
    def ignoring(n: int, c: dict[str, int]) -> dict[str, int]:
        return c

    session = Session()
    running = await session.start(one)
    assert await running(2) == 3
    assert len(session._pools) == 1
    again = await session.start(one)
    assert await again(4) == 5
    assert len(session._pools) == 1
    await session.aclose()
    del counters, made, ignoring


async def test_a_stage_that_cannot_start_closes_the_others():
    closed = []

    class Good(Workshop):
        async def aclose(self):
            closed.append(True)

    good, bad = Stage("good", Good), Stage("bad", Refuses)

    class Never:
        async def go(self, n: int) -> int:
            return n

    bad_step = Stage("bad", Refuses).step(Never.go)  # type: ignore[arg-type,var-annotated]
    good_step = good.step(Workshop.add)

    @graph
    def both(n: int) -> int:
        return add(good_step(n, n), bad_step(n))

    with pytest.raises(StepFailed, match="no weights at /nowhere"):
        async with start(both):
            pass
    assert closed == [True]
    del bad


async def test_wrong_inputs_are_named():
    @graph
    def one(n: int) -> int:
        return double(n)

    async with start(one) as running:
        with pytest.raises(InvalidInput, match="graph 'one'"):
            await running(1, 2)  # type: ignore[call-arg]


def test_an_unknown_engine_is_named():
    with pytest.raises(InvalidInput, match="'spark'; expected 'local' or 'ray'"):
        Session("spark")  # type: ignore[arg-type]


def test_the_blocking_face_gives_values_and_streams():
    @graph
    def one(n: int) -> int:
        return double(n)

    with run(one) as ask:
        assert ask(4) == 8
    with run(counting()) as ask:
        assert list(ask(3)) == [0, 2, 4]
        stream = ask(1000)
        assert next(iter(stream)) == 0
        stream.close()
        assert ask.running.active == 0


async def test_the_blocking_face_refuses_a_running_loop():
    @graph
    def one(n: int) -> int:
        return double(n)

    with pytest.raises(GraphError, match="use the async face"), run(one):
        pass


async def test_the_trace_tells_queue_served_and_hop_of_each_step():
    async with start(counting(isolated=True)) as running:
        trace = Trace()
        items = [i async for i in await running.within(Scope(trace=trace))(5)]
    assert items == [0, 2, 4, 6, 8]
    spans = {s.step: s for s in trace.spans}
    assert set(spans) == {"count_slowly", "doubled"}
    assert spans["count_slowly"].served_s >= 0.004
    assert "first item after" in spans["count_slowly"].note


async def test_a_split_gives_each_shard_its_own_part_and_leaves_out_the_rest():
    shards = Stage("shards", Shard, shards=3)

    def split(count: int, offset: int) -> list[tuple[int] | None]:
        return [(offset * i,) if i != 1 else None for i in range(count)]

    mine = shards.gather(Shard.mine, lambda parts: [n for part in parts for n in part], split=split)

    @graph
    def some(offset: int) -> list[int]:
        return mine(offset)

    async with start(some) as running:
        assert await running(10) == [0, 22]


@pytest.mark.parametrize("isolated", [False, True])
async def test_what_a_step_notes_reaches_the_trace_from_wherever_it_runs(isolated):
    noting = Stage("noting", Workshop, isolated=isolated).step(Workshop.note)

    @graph
    def noted(text: str) -> str:
        return noting(text)

    async with start(noted) as running:
        trace = Trace()
        await running.within(Scope(trace=trace))("kept the old order")
    assert trace.notes == ["kept the old order"]
