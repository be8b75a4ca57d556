"""Who may run now, who waits, and who is told to come back later."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.clock import MONOTONIC, Clock
from engine.errors import DeadlineExceeded, QueueFull
from engine.scope import Priority, Scope

_FIRST_GUESS_S = 1.0
_LOOK_S, _LATE_S, _FEWEST = 0.05, 0.1, 2.0
_WEIGHT = 0.1  # of the latest request in the moving average


class Admission:
    """So many requests run, so many wait, interactive ones first; the others are refused at once.

    The time after which to come back is that in which the places work off what waits, from how long requests took.

    Fewer run at once while the event loop is late (`felt`): requests that need the loop itself finish no sooner when
    more of them share it, and those that come could not even be refused in time. The number falls by half and grows by
    one (additive increase, multiplicative decrease; D. Chiu and R. Jain, 1989).

    Args:
        active: Requests that run at once.
        waiting: Requests that may wait.
        clock: Source of time.
    """

    def __init__(self, active: int, waiting: int, *, clock: Clock = MONOTONIC) -> None:
        self._places = active
        self._limit = float(active)
        self._active = 0
        self._room = waiting
        self._clock = clock
        self._queues: dict[Priority, deque[asyncio.Future[None]]] = {priority: deque() for priority in Priority}
        self._mean_s = _FIRST_GUESS_S
        self.refused = 0

    @property
    def active(self) -> int:
        """Requests that run."""
        return self._active

    @property
    def limit(self) -> int:
        """Requests that may run at once now."""
        return int(self._limit)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(not place.done() for queue in self._queues.values() for place in queue)

    def retry_after_s(self) -> float:
        """Seconds until one who comes last would have a place."""
        return (self.waiting + 1) * self._mean_s / self.limit

    def felt(self, late_s: float) -> None:
        """The event loop was so late, in seconds; told every now and then."""
        if late_s > _LATE_S:
            self._limit = max(_FEWEST, self._limit / 2)
        elif late_s < _LATE_S / 3 and self._active >= self.limit:
            self._limit = min(float(self._places), self._limit + 1)
        self._hand_out()

    async def watch(self) -> None:
        """Feels how late the running event loop is, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            await asyncio.sleep(_LOOK_S)
            self.felt(loop.time() - asked - _LOOK_S)

    @asynccontextmanager
    async def admitted(self, scope: Scope) -> AsyncIterator[None]:
        """Holds a place.

        Raises:
            QueueFull: Too many wait already.
            DeadlineExceeded: The request's time was spent waiting.
        """
        await self._enter(scope)
        began = self._clock.now()
        try:
            yield
        finally:
            self._mean_s += _WEIGHT * (self._clock.now() - began - self._mean_s)
            self._leave()

    async def _enter(self, scope: Scope) -> None:
        if self._active < self.limit:
            self._active += 1
            return
        if self.waiting >= self._room:
            self.refused += 1
            raise QueueFull(
                f"{self._active} requests run and {self.waiting} wait; come back later",
                retry_after_s=self.retry_after_s(),
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[scope.priority].append(place)
        try:
            async with asyncio.timeout(scope.remaining_s()):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._leave()  # it was given a place at the moment in which it gave up
            place.cancel()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded("the request's time was spent waiting for a place") from None
            raise

    def _leave(self) -> None:
        self._active -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Gives free places to those who wait longest among the most urgent."""
        for priority in sorted(self._queues):
            queue = self._queues[priority]
            while queue and self._active < self.limit:
                place = queue.popleft()
                if not place.done():
                    self._active += 1
                    place.set_result(None)
