"""Time as something that is passed in, so that tests can move it."""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


MONOTONIC: Clock = MonotonicClock()


class VirtualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        """Seconds that the test has let pass."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has moved the clock by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move the clock, waking sleepers in order and letting the loop run after each.

        Raises:
            ValueError: `seconds` is negative; a monotonic clock never goes back.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot advance by {seconds} s")
        until = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            at, _, future = heapq.heappop(self._sleepers)
            self._now = at
            if not future.done():
                future.set_result(None)
            await settle()
        self._now = until
        await settle()


async def settle(turns: int = 20) -> None:
    """Let everything that is ready on the running loop run."""
    for _ in range(turns):
        await asyncio.sleep(0)
