"""The replicas of one shard: who takes a call, and what becomes of it when that one is slow or dead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from engine.clock import MONOTONIC, Clock
from engine.errors import StageDied
from engine.host import Answer
from engine.method import Method
from engine.policy import ONCE, Policy
from engine.scope import Scope
from engine.transport import Transport

_RETRIED = 0.1  # share of the calls: when more die, sending them again would be a storm
_RETRIES_SAVED = 64.0  # so many calls may be lost with one replica at once
_CLOSED_S, _CLOSED_MOST_S = 0.5, 30.0  # how long a dead replica is left alone: doubled with each failure
_SAMPLES = 128
_SAMPLES_AT_LEAST = 32  # before anything is hedged
_SLOW = 0.95
_LOOK_S = 0.02  # between two looks for a replica, while there is none


class ReplicaCounters(msgspec.Struct):
    """What became of the calls of one shard."""

    calls: int = 0
    hedged: int = 0  # made a second time because the first was slow
    hedges_won: int = 0
    retried: int = 0  # made again because the first one's replica died
    died: int = 0


class Bucket:
    """Tokens that calls earn, a share each, and extra calls cost: no more extra calls than that share, but for a few.

    Args:
        most: Tokens that are kept for later.

    >>> bucket = Bucket()
    >>> [bucket.spend() for _ in range(2)], bucket.earn(0.5), bucket.earn(0.5), bucket.spend()
    ([True, False], None, None, True)
    """

    __slots__ = ("_most", "_tokens")

    def __init__(self, most: float = 10.0) -> None:
        self._most = most
        self._tokens = 1.0

    def earn(self, share: float) -> None:
        """A call was made."""
        self._tokens = min(self._most, self._tokens + share)

    def spend(self) -> bool:
        """Whether an extra call may be made; if so, it is paid for."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Latency:
    """How long a shard's calls take, of which the latest count.

    >>> latency = Latency()
    >>> for ms in range(100):
    ...     latency.add(ms / 1000)
    >>> latency.slow_s
    0.095
    """

    __slots__ = ("_latest", "_slow_s", "_unsorted")

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_SAMPLES)
        self._slow_s: float | None = None
        self._unsorted = 0

    def add(self, seconds: float) -> None:
        """A call took so long."""
        self._latest.append(seconds)
        self._unsorted += 1

    @property
    def slow_s(self) -> float | None:
        """What 95 % of the calls take less than; None while too few were made. Looked at anew every 16 calls."""
        if len(self._latest) >= _SAMPLES_AT_LEAST and (self._slow_s is None or self._unsorted >= 16):
            self._slow_s = sorted(self._latest)[int(_SLOW * len(self._latest))]
            self._unsorted = 0
        return self._slow_s


class _Circuit:
    """Whether a replica is worth asking: after a death it is left alone for a while, then tried with one call."""

    __slots__ = ("_closed_until", "_failures")

    def __init__(self) -> None:
        self._failures = 0
        self._closed_until = 0.0

    def conducts(self, now: float) -> bool:
        return now >= self._closed_until

    def try_out(self, now: float) -> None:
        """A call is made; if the replica was dead when last asked, it is the only one until it ends."""
        if self._failures:
            self._closed_until = now + min(_CLOSED_MOST_S, _CLOSED_S * 2 ** (self._failures - 1))

    def died(self, now: float) -> None:
        self._failures += 1
        self.try_out(now)

    def answered(self) -> None:
        self._failures, self._closed_until = 0, 0.0


class _Copy:
    """One replica, and how it has done."""

    __slots__ = ("circuit", "outstanding", "transport")

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.circuit = _Circuit()
        self.outstanding = 0


class Replicas:
    """The copies of one shard; a call goes to the copy with the fewest calls outstanding, the first among equals.

    Args:
        members: The ways to them: a list, or, where copies come and go, a function that gives those that there are now
            (the same objects for the same copies, in an order of their age). Copies that come and go are replaced by
            somebody when they die, so a call that may be run twice waits for one when there is none.
        name: Of the stage and shard, for errors.
        clock: Source of time.

    Attributes:
        weight: How much data the shard says that it holds; None before its first answer.
        epoch: Number of the last change in its latest answer.
        counters: What became of its calls.
    """

    def __init__(
        self,
        members: Sequence[Transport] | Callable[[], Sequence[Transport]],
        *,
        name: str = "a stage",
        clock: Clock = MONOTONIC,
    ) -> None:
        self.weight: float | None = None
        self.epoch = 0
        self.counters = ReplicaCounters()
        self._name = name
        self._members = members if callable(members) else None
        self._seen: Sequence[Transport] = () if callable(members) else members
        self._copies = [_Copy(transport) for transport in self._seen]
        self._clock = clock
        self._gone = 0  # calls outstanding at copies that have left
        self._latency = Latency()
        self._hedges, self._retries = Bucket(), Bucket(_RETRIES_SAVED)

    @property
    def transports(self) -> tuple[Transport, ...]:
        """The ways to the copies that there are now."""
        return tuple(copy.transport for copy in self._present())

    def _present(self) -> list[_Copy]:
        if self._members is not None and (now := self._members()) is not self._seen:
            known = {id(copy.transport): copy for copy in self._copies}
            self._copies = [known.get(id(transport)) or _Copy(transport) for transport in now]
            for copy in self._copies:
                known.pop(id(copy.transport), None)
            self._seen = now
            self._gone += sum(copy.outstanding for copy in known.values())
        return self._copies

    def take(self, but: Collection[_Copy] = ()) -> _Copy:
        """The copy for the next call, which counts as outstanding until `give_back`.

        Args:
            but: Copies that the call was made to already.

        Raises:
            StageDied: There is no other.
        """
        if not but:
            self.counters.calls += 1
            self._retries.earn(_RETRIED)
        copies = self._worth_asking(but)
        if not copies:
            raise StageDied(f"no replica of {self._name} lives")
        taken = min(copies, key=_outstanding)
        taken.circuit.try_out(self._clock.now())
        taken.outstanding += 1
        return taken

    def _worth_asking(self, but: Collection[_Copy]) -> list[_Copy]:
        """Copies besides those that are not known to be dead; when all are, those that nobody will replace."""
        now = self._clock.now()
        copies = [copy for copy in self._present() if copy not in but]
        alive = [copy for copy in copies if copy.circuit.conducts(now)]
        return alive if alive or self._members is not None else copies

    def give_back(self, copy: _Copy) -> None:
        """The call at `copy` has ended."""
        copy.outstanding -= 1
        if copy not in self._copies:
            self._gone -= 1

    def answered(self, copy: _Copy) -> None:
        """The copy lives."""
        copy.circuit.answered()

    def died(self, copy: _Copy) -> None:
        """The copy is dead; it is left alone for a while."""
        self.counters.died += 1
        copy.circuit.died(self._clock.now())

    async def another(self, used: Collection[_Copy], scope: Scope, *, patient: bool) -> bool:
        """Whether a copy besides those is worth asking, perhaps after waiting for one as long as the request lasts.

        Raises:
            RequestEnded: The request's time was spent waiting.
        """
        while not self._worth_asking(used):
            if self._members is None or not patient:
                return False
            scope.check()
            await asyncio.sleep(_LOOK_S)
        return True

    async def may_retry(self, used: Collection[_Copy], scope: Scope, *, patient: bool) -> bool:
        """Whether a call that those copies failed may be made once more, on another copy; if so, it is counted.

        Raises:
            RequestEnded: See `another`.
        """
        if len(used) > 1 or not await self.another(used, scope, patient=patient) or not self._retries.spend():
            return False
        self.counters.retried += 1
        return True

    @property
    def outstanding(self) -> int:
        """Calls and streams that have not ended."""
        return self._gone + sum(copy.outstanding for copy in self._copies)

    async def call(self, method: Method, args: Sequence[Any], scope: Scope, policy: Policy = ONCE) -> Answer:
        """Run a method on one copy, or, as far as the policy goes, on a second one.

        Raises:
            StageDied: The copy died, and a second one too or there was none to try.
            HeadraceError: Whatever the method raised.
        """
        if not policy.idempotent or (self._members is None and len(self._copies) == 1):
            return await self._attempt(self.take(), method, args, scope)
        self._hedges.earn(policy.hedged)
        return await self._race(method, args, scope, policy)

    async def _race(self, method: Method, args: Sequence[Any], scope: Scope, policy: Policy) -> Answer:
        """The first answer of one copy, and of a second one when that is slow or dead."""
        used: list[_Copy] = []
        running: list[asyncio.Task[Answer]] = []
        patient = not policy.loses  # others answer in its place, if it does

        def begin() -> asyncio.Task[Answer]:
            used.append(self.take(used))
            task = asyncio.create_task(self._attempt(used[-1], method, args, scope))
            task.add_done_callback(_looked_at)
            running.append(task)
            return task

        await self.another((), scope, patient=patient)
        begin()
        hedge: asyncio.Task[Answer] | None = None
        slow_s = self._latency.slow_s if policy.hedged and len(self._copies) > 1 else None
        try:
            while True:
                done, _ = await asyncio.wait(running, timeout=slow_s, return_when=asyncio.FIRST_COMPLETED)
                slow_s = None
                if not done and self._worth_asking(used) and self._hedges.spend():
                    self.counters.hedged += 1
                    hedge = begin()
                for task in done:
                    if (failure := task.exception()) is None:
                        self.counters.hedges_won += task is hedge
                        return task.result()
                    running.remove(task)
                    if not isinstance(failure, StageDied):
                        raise failure
                    if running:
                        continue  # the other one may answer
                    if not await self.may_retry(used, scope, patient=patient):
                        raise failure
                    begin()
        finally:
            for task in running:
                task.cancel()

    async def _attempt(self, copy: _Copy, method: Method, args: Sequence[Any], scope: Scope) -> Answer:
        began = self._clock.now()
        try:
            answer = await copy.transport.call(method, args, scope)
        except StageDied:
            self.died(copy)
            raise
        finally:
            self.give_back(copy)
        self.answered(copy)
        self._latency.add(self._clock.now() - began)
        self.weight, self.epoch = answer.weight, answer.epoch
        return answer


def _outstanding(copy: _Copy) -> int:
    return copy.outstanding


def _looked_at(task: asyncio.Task[Answer]) -> None:
    """A loser's failure is nobody's concern."""
    if not task.cancelled():
        task.exception()
