"""engine/scope.py: deadline, cancellation, and what of them crosses a hop."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.clock import VirtualClock
from engine.errors import Cancelled, DeadlineExceeded
from engine.scope import Identity, Priority, Scope, ScopeWire, current_scope, entered
from engine.trace import Trace


def sent(scope: Scope, clock: VirtualClock) -> Scope:
    """The scope after a hop to a process with another clock."""
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(scope.to_wire()), type=ScopeWire)
    return Scope.from_wire(wire, clock)


async def test_the_deadline_counts_from_the_beginning():
    clock = VirtualClock()
    scope = Scope(timeout_s=2, clock=clock)
    assert (scope.deadline, scope.remaining_s(), scope.ended) == (2.0, 2.0, False)
    await clock.advance(0.5)
    assert scope.remaining_s() == 1.5
    await clock.advance(1.5)
    assert scope.ended
    await clock.advance(1)
    assert scope.remaining_s() == -1.0


def test_a_scope_without_timeout_never_ends_by_itself():
    scope = Scope(clock=VirtualClock())
    assert (scope.deadline, scope.remaining_s(), scope.ended) == (None, None, False)
    scope.check()


def test_a_timeout_of_zero_has_ended():
    with pytest.raises(DeadlineExceeded) as expired:
        Scope("r1", timeout_s=0, clock=VirtualClock()).check()
    assert expired.value.request_id == "r1"


def test_cancelling_ends_it_and_wins_over_the_deadline():
    scope = Scope("r1", timeout_s=0, clock=VirtualClock())
    scope.cancel()
    assert scope.cancelled
    assert scope.ended
    with pytest.raises(Cancelled) as cancelled:
        scope.check()
    assert cancelled.value.request_id == "r1"


def test_ids_that_are_made_up_differ():
    assert len({Scope().id for _ in range(1000)}) == 1000


async def test_a_hop_carries_the_time_that_is_left_not_the_time_of_day():
    here, there = VirtualClock(), VirtualClock()
    await there.advance(1000)
    scope = Scope("r1", timeout_s=2, priority=Priority.BATCH, trace=Trace(here), clock=here)
    await here.advance(0.5)
    far = sent(scope, there)
    assert (far.id, far.deadline, far.remaining_s(), far.priority) == ("r1", 1001.5, 1.5, Priority.BATCH)
    assert far.trace is not None
    assert far.trace is not scope.trace
    assert not far.cancelled


async def test_a_scope_that_has_ended_arrives_ended():
    clock = VirtualClock()
    late, gone = Scope(timeout_s=1, clock=clock), Scope(clock=clock)
    await clock.advance(3)
    gone.cancel()
    assert sent(late, VirtualClock()).remaining_s() == -2.0
    assert sent(gone, VirtualClock()).cancelled


def test_a_scope_without_deadline_or_trace_arrives_without():
    far = sent(Scope(clock=VirtualClock()), VirtualClock())
    assert (far.deadline, far.trace) == (None, None)


def test_the_wire_form_is_an_array():
    wire = Scope("r1", timeout_s=0.25, clock=VirtualClock()).to_wire()
    assert msgspec.json.encode(wire) == b'["r1",250.0,0,false,false,null,null]'


@given(
    id=st.text(min_size=1, max_size=40),
    timeout_s=st.none() | st.floats(-10, 1e6),
    priority=st.sampled_from(Priority),
    traced=st.booleans(),
    cancelled=st.booleans(),
)
def test_any_scope_survives_a_hop(
    id: str,
    timeout_s: float | None,
    priority: Priority,
    *,
    traced: bool,
    cancelled: bool,
):
    clock = VirtualClock()
    scope = Scope(id, timeout_s=timeout_s, priority=priority, trace=Trace(clock) if traced else None, clock=clock)
    if cancelled:
        scope.cancel()
    far = sent(scope, VirtualClock())
    assert (far.id, far.priority, far.trace is not None, far.cancelled) == (id, priority, traced, cancelled)
    assert far.remaining_s() == pytest.approx(timeout_s)


def test_the_current_scope_is_the_one_entered_last():
    with entered(Scope("outer")):
        with entered(Scope("inner")):
            assert current_scope().id == "inner"
        assert current_scope().id == "outer"


def test_a_scope_is_left_when_its_block_raises():
    before = current_scope().id
    with pytest.raises(ZeroDivisionError), entered(Scope("outer")):
        1 / 0  # noqa: B018 - raises
    assert current_scope().id not in {"outer", before}


def test_outside_any_request_the_scope_has_no_end():
    scope = current_scope()
    assert (scope.deadline, scope.cancelled, scope.priority) == (None, False, Priority.INTERACTIVE)


async def test_tasks_inherit_the_scope_and_do_not_leak_theirs():
    async def inner() -> tuple[str, str]:
        inherited = current_scope().id
        with entered(Scope("mine")):
            await asyncio.sleep(0)
            return inherited, current_scope().id

    with entered(Scope("outer")):
        assert await asyncio.gather(inner(), inner()) == [("outer", "mine")] * 2
        assert current_scope().id == "outer"


def test_who_asks_crosses_the_hop():
    identity = Identity("ann", ("team", "sea"))
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(Scope(identity=identity).to_wire()), type=ScopeWire)
    assert Scope.from_wire(wire).identity == identity
    assert Scope.from_wire(Scope().to_wire()).identity is None


async def test_a_deadline_whose_timer_rings_early_is_spent():
    scope = Scope(timeout_s=0.01, clock=VirtualClock())  # whose time stands still
    with pytest.raises(DeadlineExceeded):
        await scope.in_time(asyncio.sleep(10))


@pytest.mark.parametrize("timeout_s", [None, 60])
async def test_a_timeout_of_the_work_itself_is_no_deadline(timeout_s):
    async def work():
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await Scope(timeout_s=timeout_s).in_time(work())
