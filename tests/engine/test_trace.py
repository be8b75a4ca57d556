"""engine/trace.py: spans, what the engine costs, and the picture of it, by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.clock import VirtualClock
from engine.trace import Span, Trace

SPANS = (  # step, start, end, queued, served
    ("plan", 0.0, 0.01, 0.0, 0.01),
    ("dense", 0.01, 0.05, 0.01, 0.02),  # 10 ms of hop: 5 before, 5 after
    ("lexical", 0.01, 0.03, 0.0, 0.02),
    ("fuse", 0.06, 0.10, 0.0, 0.04),
)


def trace_of(*spans: tuple[str, float, float, float, float]) -> Trace:
    trace = Trace(VirtualClock())
    for span in spans:
        trace.record(*span)
    return trace


async def test_times_count_from_the_beginning_of_the_trace():
    clock = VirtualClock()
    await clock.advance(100)
    trace = Trace(clock)
    trace.record("plan", 100.5, 101.0, 0.1, 0.3, "cached")
    assert trace.spans == [Span("plan", 0.5, 1.0, 0.1, 0.3, "cached")]


def test_what_is_neither_queue_nor_operator_is_hop():
    assert Span("dense", 1.0, 2.0, 0.25, 0.5).hop_s == 0.25


def test_a_hop_is_never_negative_though_the_far_clock_may_disagree():
    assert Span("dense", 1.0, 2.0, 0.5, 0.75).hop_s == 0.0


def test_the_total_runs_from_the_first_start_to_the_last_end():
    assert trace_of(("b", 2.0, 3.0, 0, 1), ("a", 1.0, 5.0, 0, 4), ("c", 4.0, 4.5, 0, 0.5)).total_s() == 4.0


def test_overhead_is_the_share_of_time_in_which_no_operator_was_at_work():
    trace = trace_of(*SPANS)
    # plan 0 to 10; dense is at work from 15 to 45, lexical from 10 to 30; fuse 60 to 100: 85 of 100 ms
    assert trace.busy_s() == pytest.approx(0.085)
    assert trace.total_s() == pytest.approx(0.1)
    assert trace.overhead_share() == pytest.approx(0.15)


def test_parallel_steps_are_not_counted_twice():
    assert trace_of(("a", 0.0, 1.0, 0, 1), ("b", 0.0, 1.0, 0, 1)).busy_s() == 1.0


def test_an_empty_trace_costs_nothing():
    trace = Trace(VirtualClock())
    assert (trace.total_s(), trace.busy_s(), trace.overhead_share()) == (0.0, 0.0, 0.0)
    assert trace.waterfall() == "no steps ran"


def test_the_waterfall_by_hand():
    trace = trace_of(*SPANS)
    trace.note("no cross-encoder: fused order kept")
    assert trace.waterfall(width=20).splitlines() == [
        "step        queued    served       hop  ms",
        "plan          0.00     10.00      0.00  |##",
        "lexical       0.00     20.00      0.00  |  ####",
        "dense        10.00     20.00     10.00  |  .~~####.",
        "fuse          0.00     40.00      0.00  |            ########",
        "total 100.0 ms, engine overhead 15.0 %",
        "note: no cross-encoder: fused order kept",
    ]


def test_the_waterfall_lines_up_whatever_the_names():
    head, *bars = trace_of(("a", 0.0, 1.0, 0, 1), ("b", 0.0, 1.0, 0, 1)).waterfall().splitlines()[:3]
    assert {bar.index("|") for bar in bars} == {head.index("ms")}


def test_a_step_of_no_time_is_still_seen():
    assert trace_of(("a", 1.0, 1.0, 0, 0)).waterfall().splitlines()[1].endswith("|#")


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.floats(0, 10), st.floats(0, 5), st.floats(0, 5)),
        min_size=1,
        max_size=8,
    )
)
def test_no_bar_leaves_the_picture(rows: list[tuple[float, float, float, float]]):
    trace = trace_of(*(("step", start, start + length, queued, served) for start, length, queued, served in rows))
    assert 0 <= trace.overhead_share() <= 1
    for line in trace.waterfall(width=40).splitlines()[1:-1]:
        assert len(line.partition("|")[2]) <= 41  # one more for a step that ends with the picture and has no time


def test_spans_cross_a_hop_as_arrays():
    span = Span("dense", 0.0, 1.0, 0.25, 0.5, "note")
    assert msgspec.json.encode(span) == b'["dense",0.0,1.0,0.25,0.5,"note",0]'
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(span), type=Span) == span
