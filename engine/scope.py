"""The request scope: what travels with a question through every hop."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable
from contextvars import ContextVar, Token
from enum import IntEnum
from typing import TypeVar

import msgspec

from engine.clock import MONOTONIC, Clock
from engine.errors import Cancelled, DeadlineExceeded
from engine.spans import OpenSpan
from engine.trace import Trace

_PROCESS = secrets.token_hex(4)  # request ids are unique across processes by this, inside one by counting
_numbers = itertools.count(1)
T = TypeVar("T")


class Priority(IntEnum):
    """Who is served first where work queues; lower goes first."""

    INTERACTIVE = 0
    BATCH = 1


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """Who asks: a user and the groups that the user belongs to. Whoever keeps data decides what they may see."""

    user: str
    groups: tuple[str, ...] = ()


class ScopeWire(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A scope as it crosses a hop: remaining milliseconds instead of a wall time, since clocks differ."""

    id: str
    remaining_ms: float | None
    priority: int
    traced: bool
    cancelled: bool
    identity: Identity | None = None
    trace_parent: str | None = None  # the caller's span, as a traceparent header names it


class Loss(msgspec.Struct, array_like=True, frozen=True):
    """Shards of a stage that a step did without, and the share of the stage's data, 0 to 1, that each of them holds."""

    step: str
    stage: str
    shards: tuple[int, ...]
    shares: tuple[float, ...]


class Scope:
    """Id, deadline, priority, cancellation, trace and asking person of one request.

    Args:
        id: The request id; made up when absent.
        timeout_s: Seconds from now until the deadline; None for no deadline.
        priority: Who is served first where work queues.
        trace: Where spans are recorded; None records nothing.
        identity: Who asks; None is whoever runs the process, who may see and change everything.
        clock: Source of time.

    Attributes:
        span: The open span that the work is a part of, for who exports spans; None where nobody does.
        losses: What steps had to do without, in the order in which they found out; kept by who runs the graph.
        epochs: By stage and shard, the numbers of the last change that answers were given with: more than one for a
            shard is an answer put together from two states of the data.
    """

    __slots__ = ("_cancelled", "_outer", "clock", "deadline", "epochs", "id", "identity", "losses", "priority", "span",
                 "trace")  # fmt: skip

    def __init__(
        self,
        id: str | None = None,
        *,
        timeout_s: float | None = None,
        priority: Priority = Priority.INTERACTIVE,
        trace: Trace | None = None,
        identity: Identity | None = None,
        clock: Clock = MONOTONIC,
    ) -> None:
        self.id = id or f"{_PROCESS}-{next(_numbers)}"
        self.clock = clock
        self.deadline = None if timeout_s is None else clock.now() + timeout_s
        self.priority = priority
        self.trace = trace
        self.identity = identity
        self.span: OpenSpan | None = None
        self.losses: list[Loss] = []
        self.epochs: dict[tuple[str, int], set[int]] = {}
        self._cancelled = False
        self._outer: Scope | None = None

    def narrowed(self, seconds: float) -> Scope:
        """The scope of a piece of the request's work, with an earlier deadline; it is cancelled with the request."""
        inner = Scope(
            self.id,
            timeout_s=seconds,
            priority=self.priority,
            trace=self.trace,
            identity=self.identity,
            clock=self.clock,
        )
        inner.span = self.span
        inner._outer = self
        return inner

    def inside(self, span: OpenSpan | None) -> Scope:
        """The same scope for work that has a span of its own; what that does without is noted for the request."""
        inner = Scope(self.id, priority=self.priority, trace=self.trace, identity=self.identity, clock=self.clock)
        inner.deadline, inner.losses, inner.epochs = self.deadline, self.losses, self.epochs
        inner.span, inner._outer = span, self
        return inner

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, negative when it has passed; None without one."""
        return None if self.deadline is None else self.deadline - self.clock.now()

    @property
    def cancelled(self) -> bool:
        """Whether the caller has gone."""
        return self._cancelled or (self._outer is not None and self._outer.cancelled)

    @property
    def ended(self) -> bool:
        """Whether work for this request is wasted: it is cancelled or its time is spent."""
        return self.cancelled or (self.deadline is not None and self.clock.now() >= self.deadline)

    def cancel(self) -> None:
        """Mark the request as abandoned; queues drop its work when they next look at it."""
        self._cancelled = True

    def check(self) -> None:
        """Raise when work for this request is wasted.

        Raises:
            Cancelled: The caller has gone.
            DeadlineExceeded: The time is spent.
        """
        if self.cancelled:
            raise Cancelled("the request was cancelled", request_id=self.id)
        if self.deadline is not None and self.clock.now() >= self.deadline:
            raise self._spent()

    async def in_time(self, running: Awaitable[T]) -> T:
        """Await `running` until the deadline.

        Raises:
            Cancelled: See `check`, when `running` raises a TimeoutError of its own.
            DeadlineExceeded: The time is spent. The timer may ring a nanosecond before the clock says so.
        """
        remaining = self.remaining_s()
        limit = None if remaining is None else asyncio.timeout(remaining)
        try:
            if limit is None:
                return await running
            async with limit:
                return await running
        except TimeoutError:
            self.check()
            if limit is not None and limit.expired():
                raise self._spent() from None
            raise

    def _spent(self) -> DeadlineExceeded:
        return DeadlineExceeded("the request's time is spent; allow more with a longer timeout", request_id=self.id)

    def to_wire(self) -> ScopeWire:
        """What crosses a hop."""
        remaining = self.remaining_s()
        remaining_ms = None if remaining is None else remaining * 1000
        traced = self.trace is not None
        parent = None if self.span is None else self.span.context.to_header()
        return ScopeWire(self.id, remaining_ms, int(self.priority), traced, self.cancelled, self.identity, parent)

    @classmethod
    def from_wire(cls, wire: ScopeWire, clock: Clock = MONOTONIC) -> Scope:
        """The scope on the far side of a hop; its deadline counts from the arrival."""
        timeout_s = None if wire.remaining_ms is None else wire.remaining_ms / 1000
        trace = Trace(clock=clock) if wire.traced else None
        scope = cls(
            wire.id,
            timeout_s=timeout_s,
            priority=Priority(wire.priority),
            trace=trace,
            identity=wire.identity,
            clock=clock,
        )
        if wire.cancelled:
            scope.cancel()
        return scope


_current: ContextVar[Scope | None] = ContextVar("headrace_scope", default=None)


def current_scope() -> Scope:
    """The scope of the request that is being served; an endless one of its own outside any request."""
    return _current.get() or Scope()


def current_request_id() -> str | None:
    """The id of the request that is being served; None outside any."""
    scope = _current.get()
    return None if scope is None else scope.id


class entered:
    """Make `scope` the current one inside the block."""

    __slots__ = ("_scope", "_token")
    _token: Token[Scope | None]

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> Scope:
        self._token = _current.set(self._scope)
        return self._scope

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._token)
