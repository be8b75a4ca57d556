"""Credit streams: a consumer pulls items in gulps, and a producer runs only as far ahead as it has credits.

::

    open(request, credits)     -> Chunk     the first items ride on the opening
    pull(id, ack, credits)     -> Chunk     waits for one item at least, then gives all there is up to the credits
    close(id, reason)                       idempotent; may overtake its open, which then finds a tombstone

Items carry sequence numbers from 0. `ack` is the last number received: what is acknowledged is forgotten, what is
not can be pulled again, so a repeated pull is safe. Gulps grow with load by themselves; there is no timer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from engine.clock import Clock
from engine.errors import Cancelled, DeadlineExceeded, HeadraceError, LeaseExpired, StreamError, StreamGap
from engine.meter import metered
from engine.scope import Scope, entered
from engine.supervise import as_step_failure

T = TypeVar("T")


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Some items of a stream: `items[i]` has sequence number `seq0 + i`."""

    seq0: int
    items: list[Any]
    done: bool  # these are the last
    queued_s: float = 0.0  # so far, as the producer measured
    served_s: float = 0.0
    error: HeadraceError | None = None  # why it ended, after the items


class Producer(Generic[T]):
    """The sending end of one stream: a mailbox between a source and whoever pulls.

    A *pausable* source is asked for its next item only while credits are out. A *live* one is never paused: it shares
    an engine with other requests, so its items are kept until they are pulled (a model's answer is bounded), and it
    is stopped when nobody pulls.

    Args:
        source: The items.
        step: Name of the step, for errors.
        scope: The request; its end stops the source.
        live: Whether the source cannot pause.
    """

    def __init__(self, source: AsyncIterator[T], *, step: str, scope: Scope, live: bool = False) -> None:
        self._source = source
        self._step = step
        self._scope = scope
        self._live = live
        self._clock: Clock = scope.clock
        self._items: deque[T] = deque()
        self._first = 0  # sequence number of _items[0]
        self._limit = 0  # the source may be asked for items below this number
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._error: HeadraceError | None = None
        self._pulls = 0
        self._served_s = 0.0
        self._queued_s = 0.0
        self.last_pull = self._clock.now()
        self._task = asyncio.get_running_loop().create_task(self._pump())

    @property
    def produced(self) -> int:
        """Items that the source has given so far."""
        return self._first + len(self._items)

    @property
    def credits(self) -> int:
        """Items that were asked for and are not there yet."""
        return max(0, self._limit - self.produced)

    @property
    def held(self) -> int:
        """Items that are there and not known to have arrived."""
        return len(self._items)

    def idle_s(self) -> float:
        """Seconds since the last pull ended; 0 while one is waiting."""
        return 0.0 if self._pulls else self._clock.now() - self.last_pull

    @property
    def scope_ended(self) -> bool:
        """Whether the request that the stream belongs to is over."""
        return self._scope.ended

    async def pull(self, ack: int, credits: int) -> Chunk:
        """The items after number `ack`, at least one unless the stream is at its end, at most `credits`.

        Args:
            ack: Last sequence number received; -1 before the first.
            credits: Items wanted now; the source may run as far ahead as this.

        Raises:
            StreamError: `ack` names items that were never sent or are already forgotten.
        """
        self._forget(ack)
        self._limit = max(self._limit, ack + 1 + credits)
        self._room.set()
        self._pulls += 1
        try:
            while not self._items and not self._ended:
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            self._pulls -= 1
            self.last_pull = self._clock.now()
        return self._chunk(credits)

    def _forget(self, ack: int) -> None:
        if not self._first - 1 <= ack < self.produced:
            raise StreamError(
                f"step {self._step!r}: a pull acknowledges item {ack}, but items {self._first} to {self.produced - 1} "
                "are held",
                step=self._step,
                request_id=self._scope.id,
            )
        for _ in range(ack + 1 - self._first):
            self._items.popleft()
        self._first = ack + 1

    def _chunk(self, credits: int) -> Chunk:
        items = [item for item, _ in zip(self._items, range(credits), strict=False)]
        done = self._ended and len(items) == len(self._items)
        return Chunk(
            seq0=self._first,
            items=items,
            done=done,
            queued_s=self._queued_s,
            served_s=self._served_s,
            error=self._error if done else None,
        )

    async def close(self, error: HeadraceError | None = None) -> None:
        """Stop the source and wait until it has stopped; `error` is what a late pull is told."""
        if not self._ended:
            self._error = self._error or error
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _pump(self) -> None:
        try:
            with entered(self._scope):
                await self._run()
        except asyncio.CancelledError:
            self._error = self._error or Cancelled("the stream was closed", step=self._step, request_id=self._scope.id)
        except Exception as error:  # noqa: BLE001 - the supervisor boundary: recorded, and raised at the consumer
            self._error = as_step_failure(error, self._step, self._scope.id)
        finally:
            self._ended = True
            self._arrived.set()

    async def _run(self) -> None:
        clock, items, arrived = self._clock, self._items, self._arrived
        try:
            while True:
                while not self._live and self.produced >= self._limit:
                    self._room.clear()
                    await self._room.wait()
                began = clock.now()
                with metered() as meter:
                    try:
                        item = await anext(self._source)
                    except StopAsyncIteration:
                        return
                    finally:
                        self._queued_s += meter.queued_s
                        self._served_s += clock.now() - began - meter.queued_s
                items.append(item)
                arrived.set()
        finally:
            closing = getattr(self._source, "aclose", None)
            if closing is not None:
                await closing()


class ProducersStatistics(msgspec.Struct, frozen=True):
    """Counters of a table of producers."""

    open: int
    opened: int
    finished: int
    closed: int
    leases_expired: int
    tombstones: int
    credits: int = 0  # items that consumers of open streams have asked for and that are not there yet
    held: int = 0  # items that are there and not known to have arrived


class Producers:
    """The open streams of one host: opens, pulls, closes, and ends those that nobody pulls.

    Args:
        clock: Source of time.
        lease_s: A stream that nobody pulled for so long is stopped: its consumer is gone or has stopped reading.
        tombstone_s: How long a close that overtook its open is remembered.
    """

    def __init__(self, clock: Clock, *, lease_s: float = 30.0, tombstone_s: float = 60.0) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._tombstone_s = tombstone_s
        self._open: dict[str, Producer[Any]] = {}
        self._recent: deque[tuple[str, Producer[Any]]] = deque(maxlen=64)  # finished; their last pull may be repeated
        self._tombstones: dict[str, float] = {}
        self._opened = self._finished = self._closed = self._expired = 0
        self._sweeper: asyncio.Task[None] | None = None

    async def open(
        self,
        id: str,
        source: AsyncIterator[Any],
        *,
        step: str,
        scope: Scope,
        live: bool,
        credits: int,
    ) -> Chunk:
        """Start a stream and pull its first items.

        Raises:
            Cancelled: Its close came first.
        """
        if self.take_tombstone(id):
            closing = getattr(source, "aclose", None)
            if closing is not None:
                await closing()
            raise Cancelled("the stream was closed before it was opened", step=step, request_id=scope.id)
        self._opened += 1
        self._open[id] = Producer(source, step=step, scope=scope, live=live)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        return await self.pull(id, -1, credits)

    async def pull(self, id: str, ack: int, credits: int) -> Chunk:
        """More of stream `id`; see Producer.pull.

        Raises:
            StreamError: There is no such stream: it ended, was closed, or its lease expired.
        """
        producer = self._open.get(id) or next((p for i, p in self._recent if i == id), None)
        if producer is None:
            raise StreamError(f"there is no open stream {id!r}; it has ended, was closed, or its lease expired")
        chunk = await producer.pull(ack, credits)
        if chunk.done and self._open.pop(id, None) is not None:
            self._finished += 1
            self._recent.append((id, producer))
        return chunk

    async def close(self, id: str, reason: str) -> bool:
        """Stop stream `id`; whether it was open. Unknown ids leave a tombstone."""
        producer = self._open.pop(id, None)
        if producer is None:
            return False
        self._closed += 1
        await producer.close(Cancelled(f"the stream was closed: {reason}"))
        return True

    def bury(self, id: str) -> None:
        """Remember that `id` was closed, in case its opening is still on the way."""
        self._tombstones[id] = self._clock.now() + self._tombstone_s

    def take_tombstone(self, id: str) -> bool:
        """Whether `id` was closed before it came; forgets it."""
        now = self._clock.now()
        while self._tombstones and next(iter(self._tombstones.values())) <= now:
            del self._tombstones[next(iter(self._tombstones))]
        return self._tombstones.pop(id, None) is not None

    async def _sweep(self) -> None:
        """End streams whose lease or request is over; one look every quarter lease, at most a second apart."""
        while True:
            await self._clock.sleep(min(1.0, self._lease_s / 4))
            for id_, producer in list(self._open.items()):
                error = self._overdue(producer)
                if error is not None and self._open.pop(id_, None) is not None:
                    self._expired += isinstance(error, LeaseExpired)
                    await producer.close(error)

    def _overdue(self, producer: Producer[Any]) -> HeadraceError | None:
        if producer.idle_s() >= self._lease_s:
            return LeaseExpired(f"nobody pulled for {self._lease_s:g} s")
        if producer.scope_ended:
            return DeadlineExceeded("the request is over")
        return None

    def statistics(self) -> ProducersStatistics:
        """Counters so far."""
        return ProducersStatistics(
            len(self._open),
            self._opened,
            self._finished,
            self._closed,
            self._expired,
            len(self._tombstones),
            sum(producer.credits for producer in self._open.values()),
            sum(producer.held for producer in self._open.values()),
        )

    async def aclose(self) -> None:
        """Stop every stream."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        for id_ in list(self._open):
            await self.close(id_, "the host is shutting down")


class Link(Protocol):
    """The consumer's way to one stream of a host."""

    async def open(self, credits: int) -> Chunk:
        """Open the stream."""
        ...

    async def pull(self, ack: int, credits: int) -> Chunk:
        """Pull more of it."""
        ...

    def close_nowait(self, reason: str) -> None:
        """Send the close without waiting for it."""
        ...


class Cost:
    """What a finished stream cost at the producer, filled in by `read`."""

    __slots__ = ("queued_s", "served_s")

    def __init__(self) -> None:
        self.queued_s = self.served_s = 0.0


async def read(link: Link, *, window: int = 512, cost: Cost | None = None) -> AsyncGenerator[Any, None]:
    """The items of a stream, in order and each once.

    One pull is in flight while the items of the last are consumed, so `window` items are outstanding at most: half in
    the consumer's hands, half granted. Stopping early closes the stream.

    Args:
        link: The stream.
        window: Items outstanding, 2 or more.
        cost: Filled with the producer's own measurements.

    Raises:
        StreamGap: A sequence number is missing.
        HeadraceError: Whatever ended the producer.
    """
    half = max(1, window // 2)
    ahead: asyncio.Task[Chunk] | None = None
    finished = False
    loop = asyncio.get_running_loop()
    try:
        chunk = await link.open(half)
        expected = 0
        while True:
            items = _in_sequence(chunk, expected)
            expected += len(items)
            if not chunk.done:
                ahead = loop.create_task(_pull(link, expected - 1, half))
            for item in items:
                yield item
            if ahead is None:
                finished = True
                break
            chunk = await ahead
            ahead = None
        if cost is not None:
            cost.queued_s, cost.served_s = chunk.queued_s, chunk.served_s
        if chunk.error is not None:
            raise chunk.error
    finally:
        if not finished:
            link.close_nowait("the consumer stopped")
        if ahead is not None:
            ahead.cancel()


async def _pull(link: Link, ack: int, credits: int) -> Chunk:
    return await link.pull(ack, credits)


def _in_sequence(chunk: Chunk, expected: int) -> list[Any]:
    """The items of `chunk` that are new; repeats are dropped."""
    if chunk.seq0 > expected:
        raise StreamGap(f"items {expected} to {chunk.seq0 - 1} of a stream are missing")
    return chunk.items[expected - chunk.seq0 :] if chunk.seq0 < expected else chunk.items
