"""The seam between a graph and where its stages live: one protocol, in-process or across a hop."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from engine.credits import Chunk, Link
from engine.errors import HeadraceError
from engine.host import Answer, Host, HostStatistics
from engine.method import Method
from engine.scope import Scope
from engine.tasks import keep
from engine.wire import ChunkWire, Close, Pull, Reply, Request, decode_error, decoder, encode

_numbers = itertools.count()


def fresh_id(scope: Scope) -> str:
    """A name for one call or stream, unique in this process and carrying the request's id."""
    return f"{scope.id}/{next(_numbers)}"


class Transport(Protocol):
    """A way to one replica of a stage."""

    async def call(self, method: Method, args: Sequence[Any], scope: Scope) -> Answer:
        """Run a coroutine method there. Cancelling the caller cancels the call."""
        ...

    def link(self, method: Method, args: Sequence[Any], scope: Scope, *, live: bool) -> Link:
        """A link to a stream of its own; nothing is sent before it is opened."""
        ...

    async def statistics(self) -> HostStatistics:
        """The host's counters."""
        ...

    async def aclose(self) -> None:
        """End the host and everything that it runs."""
        ...


class LocalTransport:
    """The stage's state lives in this process: values pass by reference, nothing is encoded.

    Args:
        host: The host, in the loop of whoever calls.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, method: Method, args: Sequence[Any], scope: Scope) -> Answer:
        """See Transport."""
        return await self.host.call(method.name, args, scope)

    def link(self, method: Method, args: Sequence[Any], scope: Scope, *, live: bool) -> Link:
        """See Transport."""
        return _LocalLink(self, method, args, scope, live=live)

    async def statistics(self) -> HostStatistics:
        """See Transport."""
        return self.host.statistics()

    def close_nowait(self, id: str, reason: str) -> None:
        """Close a stream without waiting for its source to stop."""
        keep(self._closing, self.host.close(id, reason))

    async def aclose(self) -> None:
        """See Transport."""
        await asyncio.gather(*self._closing)
        await self.host.aclose()


class _LocalLink:
    def __init__(self, owner: LocalTransport, method: Method, args: Sequence[Any], scope: Scope, *, live: bool) -> None:
        self._owner = owner
        self._id = fresh_id(scope)
        self._opening = (method.name, args, scope)
        self._live = live

    async def open(self, credits: int) -> Chunk:
        name, args, scope = self._opening
        return await self._owner.host.open(self._id, name, args, scope, live=self._live, credits=credits)

    async def pull(self, ack: int, credits: int) -> Chunk:
        return await self._owner.host.pull(self._id, ack, credits)

    def close_nowait(self, reason: str) -> None:
        self._owner.close_nowait(self._id, reason)


class RemoteTransport(ABC):
    """The caller's side of an Endpoint; a subclass carries frames there and back.

    Closes are sent without waiting and may overtake what they close.
    """

    def __init__(self) -> None:
        self._posting: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def send(self, verb: str, frame: bytes) -> bytes:
        """Carry one frame to the endpoint and its answer back.

        Raises:
            StageDied: The far side is gone.
        """

    @abstractmethod
    async def end(self) -> None:
        """End the far side."""

    async def call(self, method: Method, args: Sequence[Any], scope: Scope) -> Answer:
        """See Transport."""
        scope.check()
        id_ = fresh_id(scope)
        frame = encode(Request(scope.to_wire(), id_, method.name, 0, msgspec.Raw(encode(tuple(args)))))
        try:
            raw = await self.send("call", frame)
        except asyncio.CancelledError:
            self.close_nowait(id_, "the caller was cancelled")
            raise
        reply: Reply = decoder(Reply).decode(raw)
        if scope.span is not None:
            scope.span.receive(reply.spans)
        if reply.error is not None:
            raise decode_error(reply.error)
        if scope.trace is not None:
            scope.trace.notes += reply.notes
        value = decoder(method.result).decode(reply.value)
        return Answer(value, reply.queued_s, reply.served_s, reply.weight, reply.epoch, reply.batch)

    def link(self, method: Method, args: Sequence[Any], scope: Scope, *, live: bool) -> Link:
        """See Transport."""
        return _RemoteLink(self, method, args, scope, live=live)

    async def statistics(self) -> HostStatistics:
        """See Transport."""
        statistics: HostStatistics = decoder(HostStatistics).decode(await self.send("statistics", b""))
        return statistics

    def close_nowait(self, id: str, reason: str) -> None:
        """Send a close and do not wait for it."""
        keep(self._posting, self._post(encode(Close(id, reason))))

    async def _post(self, frame: bytes) -> None:
        try:
            await self.send("close", frame)
        except HeadraceError:
            return  # the far side is gone, and what was to be closed with it

    async def aclose(self) -> None:
        """See Transport."""
        await asyncio.gather(*self._posting)
        await self.end()


class _RemoteLink:
    def __init__(
        self, owner: RemoteTransport, method: Method, args: Sequence[Any], scope: Scope, *, live: bool
    ) -> None:
        self._owner = owner
        self._id = fresh_id(scope)
        self._method = method
        self._args = args
        self._scope = scope
        self._verb = "open_live" if live else "open"
        self._items = decoder(list[method.result])  # type: ignore[name-defined] # built at run time

    async def open(self, credits: int) -> Chunk:
        self._scope.check()
        args = msgspec.Raw(encode(tuple(self._args)))
        request = Request(self._scope.to_wire(), self._id, self._method.name, credits, args)
        return self._chunk(await self._owner.send(self._verb, encode(request)))

    async def pull(self, ack: int, credits: int) -> Chunk:
        pull = Pull(self._id, ack, credits, self._scope.span is not None)
        return self._chunk(await self._owner.send("pull", encode(pull)))

    def close_nowait(self, reason: str) -> None:
        self._owner.close_nowait(self._id, reason)

    def _chunk(self, raw: bytes) -> Chunk:
        wire: ChunkWire = decoder(ChunkWire).decode(raw)
        if self._scope.span is not None:
            self._scope.span.receive(wire.spans)
        error = None if wire.error is None else decode_error(wire.error)
        return Chunk(
            seq0=wire.seq0,
            items=self._items.decode(wire.items),
            done=wire.done,
            queued_s=wire.queued_s,
            served_s=wire.served_s,
            error=error,
        )
