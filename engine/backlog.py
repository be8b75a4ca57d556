"""How many seconds of work wait at a replica, from what can be counted there."""

from __future__ import annotations

from engine.clock import MONOTONIC, Clock

_REMEMBERED_S = 10.0  # half of what is older than this counts no more


class Backlog:
    """Seconds of queued work by Little's law (J. Little, 1961).

    The mean number of calls under way, over the rate at which they end, is the mean time that one takes.

    Args:
        clock: Source of time.

    Example:
        Four calls under way all the time, two ending a second: each takes 2 s. With one slot three wait.

        >>> from engine.clock import VirtualClock
        >>> clock = VirtualClock()
        >>> backlog = Backlog(clock)
        >>> _ = backlog.seconds(outstanding=4, ended=0)
        >>> import asyncio
        >>> asyncio.run(clock.advance(1.0))
        >>> backlog.seconds(outstanding=4, ended=2)
        6.0
    """

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._looked = clock.now()
        self._outstanding = self._ended = 0
        self._area = self._rate = 0.0  # of outstanding calls over time; of ends: both decayed alike

    def seconds(self, *, outstanding: int, ended: int, slots: int = 1) -> float:
        """Time until a call that came now would begin.

        Args:
            outstanding: Calls and streams under way now.
            ended: How many have ended so far, since the beginning.
            slots: How many the state works on at once.
        """
        now = self._clock.now()
        passed, self._looked = now - self._looked, now
        kept = 0.5 ** (passed / _REMEMBERED_S)
        self._area = kept * self._area + passed * (outstanding + self._outstanding) / 2
        self._rate = kept * self._rate + (ended - self._ended)
        self._outstanding, self._ended = outstanding, ended
        took = self._area / max(self._rate, 1.0)
        return max(0, outstanding - slots) * took / slots
