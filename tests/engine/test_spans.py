"""engine/spans.py: identity, ends, and the way home over a hop to a child process."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batcher import Batcher, BatchLimits
from engine.errors import DeadlineExceeded, StepFailed
from engine.graph import graph
from engine.run import Session, start
from engine.scope import Scope, ScopeWire
from engine.spans import OpenSpan, SpanBuffer, SpanContext, SpanRecord
from engine.stage import Stage
from engine.step import step
from engine.stream import Stream
from engine.wire import Pull, Reply, decoder, encode
from tests.tracing import Batching
from tests.until import until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

afar, here = Stage("afar", Batching, isolated=True), Stage("here", Batching)
_double, _together = afar.step(Batching.double), afar.step(Batching.together)
_hang, _counted = afar.step(Batching.hang), afar.step(Batching.counted)
_double_here = here.step(Batching.double, name="double_here")


@step
def more(n: int) -> int:
    """One more."""
    return n + 1


@graph
def doubled(n: int) -> int:
    return more(_double(n))


@graph
def joined(n: int) -> int:
    return _together(n)


@graph
def hanging(n: int) -> int:
    return _hang(n)


@graph
def counting(n: int) -> Stream[int]:
    return _counted(more(n))


@graph
def skipping(n: int) -> int:
    return _double_here.when(lambda n: n > 0, otherwise=0)(n)


def traced(buffer: SpanBuffer, **kwargs) -> Scope:
    scope = Scope(**kwargs)
    scope.span = OpenSpan("request", buffer, served=True)
    return scope


def by_name(records: list[SpanRecord]) -> dict[str, SpanRecord]:
    assert len({r.name for r in records}) == len(records)
    return {r.name: r for r in records}


# Identity


def test_a_header_names_a_span_and_is_written_as_it_was_read():
    text = f"00-{TRACE}-{SPAN}-01"
    assert SpanContext.from_header(text) == SpanContext(TRACE, SPAN, sampled=True)
    assert SpanContext.from_header(text).to_header() == text
    assert not SpanContext.from_header(f"00-{TRACE}-{SPAN}-00").sampled
    assert SpanContext.from_header(f"00-{TRACE}-{SPAN}-03").sampled  # a flag that we do not know


@pytest.mark.parametrize(
    "text",
    [
        "", "01", f"00-{TRACE}-{SPAN}", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-1",
    ],
)  # fmt: skip
def test_what_is_no_header_names_nothing(text):
    assert SpanContext.from_header(text) is None


def test_a_later_version_may_say_more():
    assert SpanContext.from_header(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") == SpanContext(TRACE, SPAN)


@given(st.text())
def test_no_text_breaks_the_reading_of_headers(text):
    SpanContext.from_header(text)


# Ends


def test_a_span_ends_once_with_what_ended_it():
    buffer = SpanBuffer()
    with pytest.raises(ZeroDivisionError), OpenSpan("a", buffer) as span:
        1 / 0  # noqa: B018 - raises
    span.end()
    (record,) = buffer.take()
    assert (record.name, record.parent_id, record.error) == ("a", "", "ZeroDivisionError: division by zero")
    assert record.end_ns >= record.start_ns > 1_600_000_000 * 10**9


def test_a_child_is_of_its_parents_trace():
    buffer = SpanBuffer()
    parent = OpenSpan("a", buffer, SpanContext(TRACE, SPAN))
    child = parent.child("b")
    assert child.context.trace_id == parent.context.trace_id == TRACE
    child.end("cancelled")
    (record,) = buffer.take()
    assert (record.parent_id, record.error) == (parent.context.span_id, "cancelled")


def test_a_full_buffer_gives_up_the_oldest_and_counts_them():
    buffer = SpanBuffer(most=2)
    for name in "abc":
        OpenSpan(name, buffer).end()
    assert [r.name for r in buffer.take(1)] == ["b"]
    assert [r.name for r in buffer.take()] == ["c"]
    assert (buffer.lost, buffer.take()) == (1, [])


# Frames


def test_frames_of_before_can_be_read():
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(["r1", None, 0, False, False, None]), type=ScopeWire)
    assert wire.trace_parent is None
    assert decoder(Reply).decode(encode([0.0, 0.0, 1, None])).spans == []
    assert not decoder(Pull).decode(encode(["p", 1, 2])).traced


def test_a_scope_without_a_span_sends_none():
    assert Scope().to_wire().trace_parent is None


def test_pieces_of_a_request_share_what_it_did_without_and_end_with_it():
    buffer = SpanBuffer()
    scope = traced(buffer, timeout_s=60)
    inner = scope.inside(scope.span.child("a"))
    assert (inner.id, inner.deadline) == (scope.id, scope.deadline)
    assert inner.losses is scope.losses
    assert inner.epochs is scope.epochs
    assert inner.to_wire().trace_parent == inner.span.context.to_header()
    assert inner.narrowed(1).span is inner.span
    scope.cancel()
    assert inner.cancelled


# Over a hop


async def test_a_step_has_a_span_the_far_side_one_below_it_and_the_batch_one_below_that():
    buffer = SpanBuffer()
    scope = traced(buffer)
    async with start(doubled) as ask:
        assert await ask.within(scope)(20) == 41
    scope.span.end()
    spans = by_name(buffer.take())
    assert set(spans) == {"request", "double", "Batching.double", "doubler batch", "more"}
    assert {r.trace_id for r in spans.values()} == {scope.span.context.trace_id}
    request, far, batch = spans["request"], spans["Batching.double"], spans["doubler batch"]
    assert spans["double"].parent_id == spans["more"].parent_id == request.span_id
    assert far.parent_id == spans["double"].span_id
    assert (batch.parent_id, batch.links) == (far.span_id, [SpanContext(far.trace_id, far.span_id)])
    assert (far.served, batch.served) == (True, False)
    assert far.attributes["process.pid"] != request.attributes.get("process.pid")
    assert far.attributes["headrace.request_id"] == scope.id
    assert batch.attributes["headrace.batch_items"] == spans["double"].attributes["headrace.batch_items"] == 1
    assert spans["double"].start_ns <= far.start_ns <= batch.start_ns


async def test_a_batch_is_linked_to_every_request_in_it():
    buffer, scopes = SpanBuffer(), []
    async with start(joined) as ask:
        scopes = [
            traced(buffer),
            traced(buffer),
        ]
        answers = await asyncio.gather(*(ask.within(s)(n) for n, s in enumerate(scopes, start=1)))
    assert answers == [2, 4]
    records = buffer.take()
    far = {r.span_id: r for r in records if r.name == "Batching.together"}
    (batch,) = [r for r in records if r.name == "doubler batch"]
    assert {link.span_id for link in batch.links} == set(far)
    assert {r.trace_id for r in far.values()} == {s.span.context.trace_id for s in scopes}
    assert batch.attributes["headrace.batch_items"] == batch.attributes["headrace.batch_requests"] == 2


async def test_requests_without_a_span_are_not_linked_and_a_failed_batch_says_why():
    buffer, scope = SpanBuffer(), traced(SpanBuffer())
    scope.span = OpenSpan("mine", buffer)

    def fails(_: list[int]) -> list[int]:
        raise ValueError("torn")

    batcher = Batcher(fails, limits=BatchLimits(max_cost=10), name="b")
    await asyncio.gather(batcher.submit([1], scope), batcher.submit([2], Scope()), return_exceptions=True)
    await batcher.aclose()
    (record,) = buffer.take()
    assert (record.error, record.links) == ("ValueError: torn", [scope.span.context])
    assert record.attributes["headrace.batch_requests"] == 2


async def test_a_stream_has_a_span_on_either_side_that_lasts_as_long_as_it():
    buffer = SpanBuffer()
    scope = traced(buffer)
    async with start(counting) as ask:
        assert [i async for i in await ask.within(scope)(2000)] == list(range(2001))
    spans = by_name(buffer.take())
    assert spans["Batching.counted"].parent_id == spans["counted"].span_id
    assert spans["counted"].parent_id == scope.span.context.span_id
    assert spans["counted"].attributes["headrace.note"].startswith("first item after")
    assert {r.error for r in spans.values()} == {""}


async def test_a_failure_is_told_on_either_side():
    buffer = SpanBuffer()
    async with start(doubled) as ask, start(counting) as count:
        with pytest.raises(StepFailed):
            await ask.within(traced(buffer))(0)
        with pytest.raises(StepFailed):
            await anext(await count.within(traced(buffer))(-2))
    errors = {r.name: r.error for r in buffer.take()}
    assert "nothing to double" in errors["double"]
    assert "nothing to double" in errors["Batching.double"]
    assert errors["doubler batch"] == "ValueError: nothing to double"
    assert "cannot count down" in errors["counted"]
    assert "cannot count down" in errors["Batching.counted"]


@pytest.mark.parametrize("gone", ["cancelled", "out of time"])
async def test_the_span_of_a_call_that_nobody_waits_for_comes_home_with_the_next_answer(gone):
    buffer, session = SpanBuffer(), Session()
    hang, double = await session.start(hanging), await session.start(doubled)
    scope = traced(buffer, timeout_s=0.2 if gone == "out of time" else None)
    asking = asyncio.create_task(hang.within(scope)(1))
    if gone == "cancelled":
        await until(lambda: begun(session))
        asking.cancel()
    with pytest.raises((DeadlineExceeded, asyncio.CancelledError)):
        await asking
    await until(lambda: idle(session))
    await double.within(traced(buffer))(1)
    await session.aclose()
    spans = by_name(buffer.take())
    assert spans["Batching.hang"].parent_id == spans["hang"].span_id
    assert spans["hang"].error
    assert spans["Batching.hang"].error


async def begun(session: Session) -> bool:
    return (await session.pools[0].statistics())[0].running == 1


async def idle(session: Session) -> bool:
    return (await session.pools[0].statistics())[0].running == 0


async def test_a_step_that_is_skipped_says_so_and_in_process_there_is_no_far_side():
    buffer = SpanBuffer()
    async with start(skipping) as ask:
        assert await ask.within(traced(buffer))(0) == 0
        assert await ask.within(traced(buffer))(2) == 4
    skipped, batch, ran = buffer.take()
    assert skipped.attributes == {"headrace.note": "skipped: not asked for"}
    assert (batch.name, batch.parent_id) == ("doubler batch", ran.span_id)
    assert ran.name == "double_here"


async def test_without_a_span_nothing_is_recorded():
    async with start(doubled) as ask:
        assert await ask(1) == 3
        (shard,) = (pool.shards[0] for pool in ask._pools.values())
        frame = await shard.transports[0].send("call", b"\x95\x96\xa1r\xc0\x00\xc2\xc2\xc0\xa1i\xa6double\x00\x91\x01")
        assert decoder(Reply).decode(frame).spans == []
