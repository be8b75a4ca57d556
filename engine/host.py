"""A host: runs the methods of one stage's state for requests from anywhere, and keeps their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from engine.clock import MONOTONIC, Clock
from engine.credits import Chunk, Producers, ProducersStatistics
from engine.errors import Cancelled, DeadlineExceeded
from engine.meter import metered
from engine.scope import Scope, entered
from engine.spans import OpenSpan
from engine.supervise import as_step_failure


class Answer(msgspec.Struct, frozen=True):
    """A step's value and what it cost where it ran, in seconds."""

    value: Any
    queued_s: float
    served_s: float
    weight: float = 1.0  # of the state's data, to be compared with other shards'
    epoch: int = 0  # number of the last change of the state's data
    batch: int = 0  # items of the largest batch that the work ran in


class HostStatistics(msgspec.Struct, frozen=True):
    """Counters of one host."""

    running: int
    served: int
    failed: int
    cancelled: int
    streams: ProducersStatistics


class Host:
    """Runs the methods of `state`; many requests at once, all in the loop that made it.

    A cancelled or expired call is refused before it starts and cancelled where it runs. Everything that a method
    raises leaves as a HeadraceError with step and request id.

    Args:
        state: The stage's state. Attributes `weight` and `epoch`, if it has them, go out with each answer.
        clock: Source of time.
        lease_s: See Producers.
    """

    def __init__(self, state: Any, *, clock: Clock = MONOTONIC, lease_s: float = 30.0) -> None:
        self.state = state
        self.clock = clock
        self._producers = Producers(clock, lease_s=lease_s)
        self._calls: dict[str, asyncio.Task[Any] | None] = {}
        self._served = self._failed = self._cancelled = 0

    async def call(self, method: str, args: Sequence[Any], scope: Scope, *, id: str | None = None) -> Answer:
        """Run a coroutine method to its end.

        Args:
            method: Name of the method.
            args: Its arguments.
            scope: The request.
            id: Name of the call, for `close`; needed only where cancelling the caller does not cancel this.

        Raises:
            RequestEnded: The request was over before the call began, or ended while it ran.
            StepFailed: The method raised.
        """
        clock = self.clock
        began = clock.now()
        try:
            scope.check()
            with entered(scope), metered() as meter:
                running = getattr(self.state, method)(*args)
                if id is not None:
                    value = await self._named(id, running, scope)
                else:
                    value = await (running if scope.deadline is None else scope.in_time(running))
            self._served += 1
            served_s = clock.now() - began - meter.queued_s
            return Answer(value, meter.queued_s, served_s, *self._about(), meter.batch)
        except asyncio.CancelledError:
            self._cancelled += 1
            raise
        except Exception as error:
            self._failed += 1
            raise as_step_failure(error, method, scope.id) from error

    def _about(self) -> tuple[float, int]:
        """Weight and epoch, of a state that has them."""
        return getattr(self.state, "weight", 1.0), getattr(self.state, "epoch", 0)

    async def _named(self, id: str, running: Coroutine[Any, Any, Any], scope: Scope) -> Any:
        """Await `running` as something that `close` can find."""
        if self._producers.take_tombstone(id):
            running.close()
            raise Cancelled("the call was cancelled before it arrived", request_id=scope.id)
        self._calls[id] = asyncio.current_task()
        try:
            return await scope.in_time(running)
        finally:
            del self._calls[id]

    async def open(
        self,
        id: str,
        method: str,
        args: Sequence[Any],
        scope: Scope,
        *,
        live: bool,
        credits: int,
        span: OpenSpan | None = None,
    ) -> Chunk:
        """Start a stream method and give its first items; see engine.credits. `span` ends with the stream."""
        if scope.ended:
            raise DeadlineExceeded("the request was over before the stream began", step=method, request_id=scope.id)
        source = getattr(self.state, method)(*args)
        if span is not None:
            source = _within(span, source)
        return await self._producers.open(id, source, step=method, scope=scope, live=live, credits=credits)

    async def pull(self, id: str, ack: int, credits: int) -> Chunk:
        """More of a stream; see engine.credits."""
        return await self._producers.pull(id, ack, credits)

    async def close(self, id: str, reason: str) -> None:
        """Cancel a call or stop a stream. Idempotent; may overtake what it closes."""
        if await self._producers.close(id, reason):
            return
        task = self._calls.get(id)
        if task is not None:
            task.cancel()
        else:
            self._producers.bury(id)

    def statistics(self) -> HostStatistics:
        """Counters so far."""
        return HostStatistics(
            len(self._calls), self._served, self._failed, self._cancelled, self._producers.statistics()
        )

    async def aclose(self) -> None:
        """Stop every stream, then the state if it has an `aclose`."""
        await self._producers.aclose()
        closing = getattr(self.state, "aclose", None)
        if closing is not None:
            await closing()


async def _within(span: OpenSpan, source: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The items of `source`; the span ends when they do, however they end."""
    with span:
        async with aclosing(source):
            async for item in source:
                yield item
