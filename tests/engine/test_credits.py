from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.clock import VirtualClock, settle
from engine.credits import Chunk, Producer, Producers, read
from engine.errors import Cancelled, DeadlineExceeded, LeaseExpired, StreamError, StreamGap
from engine.scope import Scope


async def numbers(n, made=None, closed=None):
    try:
        for i in range(n):
            if made is not None:
                made.append(i)
            yield i
    finally:
        if closed is not None:
            closed.append(True)


def producer(source, *, live=False, scope=None):
    return Producer(source, step="count", scope=scope or Scope(), live=live)


async def test_the_source_runs_no_further_than_its_credits():
    made = []
    stream = producer(numbers(100, made))
    await settle()
    assert made == []  # nothing is made before credits are out
    chunk = await stream.pull(-1, 4)
    await settle()
    assert chunk.seq0 == 0
    assert made == [0, 1, 2, 3]
    chunk = await stream.pull(chunk.seq0 + len(chunk.items) - 1, 2)
    await settle()
    assert len(made) <= 6
    await stream.close()


async def test_a_live_source_is_never_paused():
    made = []
    stream = producer(numbers(100, made), live=True)
    await settle()
    assert len(made) == 100
    assert (await stream.pull(-1, 10)).items == list(range(10))
    await stream.close()


async def test_a_repeated_pull_gives_the_same_items_again():
    stream = producer(numbers(10), live=True)
    await settle()
    first = await stream.pull(-1, 4)
    again = await stream.pull(-1, 4)
    assert first.items == again.items == [0, 1, 2, 3]
    assert (await stream.pull(3, 100)).items == [4, 5, 6, 7, 8, 9]
    await stream.close()


@pytest.mark.parametrize("ack", [-3, 4, 100])
async def test_an_acknowledgement_of_what_was_never_sent_is_refused(ack):
    stream = producer(numbers(4), live=True)
    await settle()
    with pytest.raises(StreamError, match="acknowledges item"):
        await stream.pull(ack, 1)
    await stream.close()


async def test_closing_a_producer_runs_the_sources_finally():
    closed = []
    stream = producer(numbers(10, closed=closed))
    await stream.pull(-1, 2)
    await stream.close()
    assert closed == [True]
    assert isinstance((await stream.pull(-1, 100)).error, Cancelled)


async def test_a_stream_that_nobody_pulls_loses_its_lease():
    clock, closed = VirtualClock(), []
    table = Producers(clock, lease_s=8)
    await table.open("s", numbers(100, closed=closed), step="count", scope=Scope(clock=clock), live=False, credits=2)
    await clock.advance(7)
    assert table.statistics().open == 1
    await clock.advance(3)
    statistics = table.statistics()
    assert (statistics.open, statistics.leases_expired, closed) == (0, 1, [True])
    with pytest.raises(StreamError, match="lease expired"):
        await table.pull("s", 1, 2)
    await table.aclose()


async def test_a_waiting_pull_keeps_the_lease():
    clock = VirtualClock()
    gate = asyncio.Event()

    async def slow():
        await gate.wait()
        yield 1

    table = Producers(clock, lease_s=8)
    waiting = asyncio.create_task(table.open("s", slow(), step="slow", scope=Scope(clock=clock), live=True, credits=2))
    await clock.advance(100)
    assert table.statistics().leases_expired == 0
    gate.set()
    assert (await waiting).items == [1]
    await table.aclose()


async def test_a_deadline_ends_the_stream_and_says_so():
    clock = VirtualClock()
    table = Producers(clock, lease_s=100)
    scope = Scope(clock=clock, timeout_s=5)
    opened = await table.open("s", numbers(100), step="count", scope=scope, live=False, credits=2)
    pulling = asyncio.create_task(table.pull("s", opened.items[-1], 1))
    await settle()
    await pulling
    held = table._open["s"]
    await clock.advance(6)
    assert table.statistics().open == 0
    assert isinstance(held._error, DeadlineExceeded)
    assert not isinstance(held._error, LeaseExpired)
    await table.aclose()


async def test_a_close_that_overtakes_its_open_is_remembered():
    clock, closed = VirtualClock(), []
    table = Producers(clock)
    assert not await table.close("s", "gone")
    table.bury("s")
    source = numbers(3, closed=closed)
    with pytest.raises(Cancelled, match="before it was opened"):
        await table.open("s", source, step="count", scope=Scope(clock=clock), live=False, credits=1)
    assert table.statistics().opened == 0
    table.bury("t")
    await clock.advance(61)
    assert not table.take_tombstone("t")
    await table.aclose()


async def test_the_last_pull_may_be_repeated():
    table = Producers(VirtualClock())
    scope = Scope()
    first = await table.open("s", numbers(3), step="count", scope=scope, live=True, credits=10)
    while not first.done:
        first = await table.pull("s", -1, 10)
    again = await table.pull("s", -1, 10)
    assert (again.items, again.done) == ([0, 1, 2], True)
    assert table.statistics().open == 0
    await table.aclose()


class Script:
    """A link that answers what a test wrote down."""

    def __init__(self, *chunks):
        self.chunks = list(chunks)
        self.closed = []
        self.acks = []

    async def open(self, credits):
        return self.chunks.pop(0)

    async def pull(self, ack, credits):
        self.acks.append(ack)
        return self.chunks.pop(0)

    def close_nowait(self, reason):
        self.closed.append(reason)


def chunk(seq0, *items, done=False):
    return Chunk(seq0=seq0, items=list(items), done=done)


async def test_a_gap_in_the_numbers_is_an_error_and_closes_the_stream():
    link = Script(chunk(0, "a"), chunk(2, "c"))
    with pytest.raises(StreamGap, match="items 1 to 1"):
        [i async for i in read(link)]
    assert link.closed


async def test_repeated_items_are_dropped():
    link = Script(chunk(0, "a", "b"), chunk(1, "b", "c", done=True))
    assert [i async for i in read(link)] == ["a", "b", "c"]
    assert (link.acks, link.closed) == ([1], [])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 40),
    live=st.booleans(),
    pulls=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=60, max_size=60),
)
def test_whatever_is_pulled_and_repeated_every_item_comes_once_and_in_order(n, live, pulls):
    async def check():
        stream = producer(numbers(n), live=live)
        got, ack = [], -1
        for credits, lost in pulls:
            answer = await stream.pull(ack, credits)
            assert answer.seq0 == ack + 1
            assert len(answer.items) <= credits
            assert stream.produced <= n
            if lost:
                continue  # the answer never arrived: the same pull again
            got += answer.items
            ack += len(answer.items)
            if answer.done:
                break
        assert got == list(range(len(got)))
        await stream.close()

    asyncio.run(check())
