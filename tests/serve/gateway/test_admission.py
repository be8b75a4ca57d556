"""Admission: places, two queues, refusals with a time, and no place lost however a request ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from engine.clock import VirtualClock, settle
from engine.errors import DeadlineExceeded, QueueFull
from engine.scope import Priority, Scope
from serve.gateway.admission import Admission


async def holding(admission, scope, order, name):
    async with admission.admitted(scope):
        order.append(name)


async def test_interactive_requests_are_served_before_batch_ones_that_came_earlier():
    admission, order = Admission(1, 10), []
    async with AsyncExitStack() as place:
        await place.enter_async_context(admission.admitted(Scope()))
        batch = [
            asyncio.create_task(holding(admission, Scope(priority=Priority.BATCH), order, f"batch {n}")) for n in (1, 2)
        ]
        await settle()
        interactive = asyncio.create_task(holding(admission, Scope(), order, "interactive"))
        await settle()
        assert (admission.active, admission.waiting) == (1, 3)
    await asyncio.gather(*batch, interactive)
    assert order == ["interactive", "batch 1", "batch 2"]
    assert (admission.active, admission.waiting) == (0, 0)


async def test_one_too_many_is_refused_with_the_time_in_which_the_places_work_off_what_waits():
    clock = VirtualClock()
    admission = Admission(2, 1, clock=clock)
    for _ in range(100):
        async with admission.admitted(Scope()):
            await clock.advance(4)
    async with admission.admitted(Scope()), admission.admitted(Scope()):
        waiting = asyncio.create_task(holding(admission, Scope(), [], ""))
        await settle()
        with pytest.raises(QueueFull, match="2 requests run and 1 wait") as refused:
            async with admission.admitted(Scope()):
                pass
    assert refused.value.retry_after_s == pytest.approx(4.0, rel=0.01)
    assert admission.refused == 1
    await waiting


async def test_a_place_that_comes_to_one_who_has_given_up_goes_to_the_next():
    admission, order = Admission(1, 10), []
    async with admission.admitted(Scope()):
        first = asyncio.create_task(holding(admission, Scope(), order, "first"))
        second = asyncio.create_task(holding(admission, Scope(), order, "second"))
        await settle()
        first.cancel()  # not yet run when the place is given away below
    await asyncio.gather(first, second, return_exceptions=True)
    assert order == ["second"]
    assert (admission.active, admission.waiting) == (0, 0)


async def test_waiting_ends_with_the_requests_time():
    admission = Admission(1, 10)
    async with admission.admitted(Scope()):
        with pytest.raises(DeadlineExceeded, match="waiting for a place"):
            await holding(admission, Scope(timeout_s=0.01), [], "")
        assert admission.waiting == 0
    assert admission.active == 0


async def test_a_thousand_cancelled_at_random_leave_nothing():
    admission, order = Admission(3, 1000), []
    tasks = [asyncio.create_task(holding(admission, Scope(), order, n)) for n in range(1000)]
    for n, task in enumerate(tasks):
        if n % 3 == 0:
            task.cancel()
        if n % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (admission.active, admission.waiting) == (0, 0)


async def test_while_the_loop_is_late_fewer_run_and_then_more_again():
    admission = Admission(8, 10)
    for _ in range(5):
        admission.felt(0.5)
    assert admission.limit == 2
    async with AsyncExitStack() as places:
        for _ in range(2):
            await places.enter_async_context(admission.admitted(Scope()))
        waiting = asyncio.create_task(places.enter_async_context(admission.admitted(Scope())))
        await settle()
        assert (admission.active, admission.waiting) == (2, 1)
        admission.felt(0.0)
        await waiting
        assert (admission.active, admission.waiting, admission.limit) == (3, 0, 3)
    assert admission.active == 0


async def test_the_limit_grows_only_as_far_as_it_is_used():
    admission = Admission(8, 10)
    admission.felt(0.5)
    for _ in range(10):
        admission.felt(0.0)
    assert admission.limit == 4
