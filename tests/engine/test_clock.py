"""engine/clock.py: the clock that tests move."""

from __future__ import annotations

import asyncio

import pytest

from engine.clock import MONOTONIC, VirtualClock, settle


async def test_sleepers_wake_in_order_each_at_its_own_moment():
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    tasks = [asyncio.create_task(sleeper(*one)) for one in (("c", 3.0), ("a", 1.0), ("b", 1.0), ("d", 4.0))]
    await clock.advance(3)
    assert woken == [("a", 1.0), ("b", 1.0), ("c", 3.0)]
    assert clock.now() == 3.0
    await clock.advance(1)
    assert woken[-1] == ("d", 4.0)
    await asyncio.gather(*tasks)


async def test_a_sleeper_that_sleeps_again_wakes_within_the_same_advance():
    clock = VirtualClock()
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(0.5)
            ticks.append(clock.now())

    task = asyncio.create_task(ticker())
    await clock.advance(2)
    assert ticks == [0.5, 1.0, 1.5, 2.0]
    task.cancel()


async def test_a_cancelled_sleeper_is_passed_over():
    clock = VirtualClock()
    gone = asyncio.create_task(clock.sleep(1))
    stays = asyncio.create_task(clock.sleep(2))
    await settle()
    gone.cancel()
    await clock.advance(2)
    assert gone.cancelled()
    assert stays.done()


async def test_sleeping_for_nothing_returns_without_moving_the_clock():
    clock = VirtualClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.now() == 0.0


async def test_the_clock_never_goes_back():
    with pytest.raises(ValueError, match="-1"):
        await VirtualClock().advance(-1)


async def test_settling_lets_chains_of_ready_callbacks_run():
    steps: list[int] = []

    async def chain() -> None:
        for number in range(10):
            await asyncio.sleep(0)
            steps.append(number)

    task = asyncio.create_task(chain())
    await settle()
    assert steps == list(range(10))
    await task


def test_the_machines_clock_is_monotonic():
    assert MONOTONIC.now() <= MONOTONIC.now()
