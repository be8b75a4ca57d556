"""Streams on their way to clients: recorded, sent, resumed, and ended when nobody wants them any more."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from engine.errors import HeadraceError
from engine.scope import Scope
from engine.supervise import as_step_failure
from serve.gateway.config import GatewayConfig
from serve.gateway.frames import HEARTBEAT, encode_json, event_name, frame
from serve.gateway.problems import Refused, body_of
from serve.gateway.tape import Tape

_STREAMS_KEPT = 1000
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

Summary = Callable[[], dict[str, Any]]


class LiveStream:
    """One stream: a task records its events, and a client, or one after another, reads them.

    Args:
        scope: The request; it is cancelled when the stream is given up.
        config: Limits.
        patience_s: How long it goes on without a client.
    """

    def __init__(self, scope: Scope, config: GatewayConfig, *, patience_s: float) -> None:
        self.id = scope.id
        self.tape = Tape(ahead=config.ahead, kept=config.kept)
        self._scope = scope
        self._patience_s = min(patience_s, config.resume_seconds)
        self._recording: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    def start(self, items: AsyncIterator[Any], summary: Summary, ended: Callable[[], Awaitable[None]]) -> None:
        """Begins to record.

        Args:
            items: The stream.
            summary: What the last event says, asked for when all items have come.
            ended: Called when nothing more will be recorded.
        """
        self._recording = asyncio.create_task(self._record(items, summary, ended))

    async def _record(self, items: AsyncIterator[Any], summary: Summary, ended: Callable[[], Awaitable[None]]) -> None:
        try:
            async for item in items:
                await self._add(event_name(item), encode_json(item))
            await self._add("done", encode_json(summary()))
        except Exception as error:  # noqa: BLE001 - the supervisor boundary: the client reads it
            failure = error if isinstance(error, HeadraceError) else as_step_failure(error, "stream", self.id)
            told = body_of(failure, self.id) | {"seq": self.tape.recorded}
            await self._add("error", encode_json(told))
        finally:
            self.tape.end()
            await ended()

    async def _add(self, event: str, data: bytes) -> None:
        await self.tape.record(frame(f"{self.id}:{self.tape.recorded + 1}", event, data))

    def came(self) -> None:
        """A client reads."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def left(self) -> None:
        """The client has gone: unless it said that it might come back, the work ends at once."""
        if self.tape.ended:
            return
        if self._patience_s <= 0:
            self.end()
        else:
            self._ending = asyncio.get_running_loop().call_later(self._patience_s, self.end)

    def end(self) -> None:
        """Gives the stream up; whoever produces it is cancelled."""
        self._scope.cancel()
        if self._recording is not None:
            self._recording.cancel()

    async def aclose(self) -> None:
        """Gives it up and waits until its producer has stopped."""
        self.came()
        self.end()
        if self._recording is not None:
            await asyncio.wait([self._recording])


class LiveStreams:
    """The streams that clients may come back to.

    Args:
        config: Limits.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._streams: OrderedDict[str, LiveStream] = OrderedDict()

    def add(self, stream: LiveStream) -> None:
        """Remembers a stream.

        Raises:
            Refused: Another one has its id.
        """
        if stream.id in self._streams:
            raise Refused(409, f"a stream with the id {stream.id!r} is known already; choose another x-request-id")
        self._streams[stream.id] = stream
        ended = [id_ for id_, stream in self._streams.items() if stream.tape.ended]
        for id_ in ended[: max(0, len(self._streams) - _STREAMS_KEPT)]:
            del self._streams[id_]

    def discard(self, id: str) -> None:
        """Forgets a stream that never began."""
        self._streams.pop(id, None)

    def forget_later(self, id: str) -> None:
        """Forgets an ended stream when the time to resume it is over."""
        asyncio.get_running_loop().call_later(self._config.resume_seconds, self._streams.pop, id, None)

    def resumed(self, last_event_id: str) -> tuple[LiveStream, int]:
        """The stream and the number of the last event that a client has seen.

        Raises:
            Refused: No such event was given out, or it is too long ago.
        """
        id_, _, number = last_event_id.rpartition(":")
        stream = self._streams.get(id_)
        if stream is None or not (number.isascii() and number.isdigit()):
            raise Refused(410, f"there is no stream to resume from event {last_event_id!r}; ask again")
        stream.tape.refuse_unless_kept(int(number))
        return stream, int(number)

    async def aclose(self) -> None:
        """Gives all of them up."""
        await asyncio.gather(*(stream.aclose() for stream in self._streams.values()))


class Events(Response):
    """The response that sends a stream's events.

    Args:
        stream: Whose.
        after: Number of the last event that the client has.
        config: Limits.
    """

    def __init__(self, stream: LiveStream, after: int, config: GatewayConfig) -> None:
        super().__init__()
        self._stream = stream
        self._after = after
        self._config = config

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Sends until the stream ends, the client has gone, or it takes nothing for too long."""
        self._stream.came()
        headers = [*_HEADERS, (b"x-request-id", self._stream.id.encode())]
        sending = asyncio.create_task(self._send(send, headers))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self._stream.left()

    async def _send(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for frames in self._stream.tape.after(self._after, idle_s=self._config.heartbeat_seconds):
            async with asyncio.timeout(self._config.stall_seconds):
                await send({"type": "http.response.body", "body": frames or HEARTBEAT, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[Any], scope: Scope) -> Any:
    """The result of `work`, which is cancelled, with its request, when the client closes the connection.

    Raises:
        asyncio.CancelledError: It has.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            scope.cancel()
            working.cancel()
        return await working
    finally:
        leaving.cancel()
        working.cancel()
