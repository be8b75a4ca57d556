"""A graph over a WebSocket: the client says how many items it takes, and no more are pulled.

::

    client   {"question": ...}                   the graph's inputs and options, first
             {"credit": 8}                       so many more items, at any time
             {"cancel": true}                    enough; the same as closing
    server   {"seq": 1, "event": "text", "data": ...}   one item, for one credit
             {"seq": 9, "event": "done", "data": ...}   or "error": the last message, for none
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from engine.errors import Cancelled, DeadlineExceeded, HeadraceError, InvalidInput
from engine.scope import Scope
from engine.stream import Stream
from engine.supervise import as_step_failure
from serve.gateway.frames import encode_json, event_name
from serve.gateway.problems import body_of

MOST_CREDITS = 1_000_000
_NORMAL, _WRONG = 1000, 1008


class _Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's message after the first one."""

    credit: int = 0
    cancel: bool = False


_grants = msgspec.json.Decoder(_Grant)


class Credits:
    """Items that a client takes and has not got yet."""

    def __init__(self) -> None:
        self._left = 0
        self._granted = asyncio.Event()

    def grant(self, items: int) -> None:
        """So many more.

        Raises:
            InvalidInput: Fewer than one, or more than anybody can mean.
        """
        if not 1 <= items <= MOST_CREDITS - self._left:
            raise InvalidInput(f"credit is {items}; expected 1 or more, and no more than {MOST_CREDITS:,} unused")
        self._left += items
        self._granted.set()

    async def take(self, scope: Scope) -> None:
        """Returns when an item may be pulled.

        Raises:
            DeadlineExceeded: The request's time was spent first.
        """
        while not self._left:
            self._granted.clear()
            try:
                async with asyncio.timeout(scope.remaining_s()):
                    await self._granted.wait()
            except TimeoutError:
                raise DeadlineExceeded("the request's time was spent waiting for credits") from None
        self._left -= 1


class Conversation:
    """One request over a socket that was accepted.

    Args:
        socket: The client's.
        scope: The request.
        summary: What the last message says.
    """

    def __init__(self, socket: WebSocket, scope: Scope, summary: Callable[[int], dict[str, Any]]) -> None:
        self._socket = socket
        self._scope = scope
        self._summary = summary
        self._credits = Credits()
        self._sent = 0

    async def hold(self, work: Awaitable[Any]) -> BaseException | None:
        """Sends what `work` gives: a stream's items within the client's credits, or one value.

        Returns:
            What ended it before all was sent; None when all was.
        """
        sending = asyncio.ensure_future(self._send(work))
        listening = asyncio.create_task(self._listen())
        try:
            await asyncio.wait([sending, listening], return_when=asyncio.FIRST_COMPLETED)
            told = sending if sending.done() else listening
        finally:  # Ray Serve cancels this when the client goes; nothing may be sending then, either
            if not sending.done():
                self._scope.cancel()
            for task in (sending, listening):
                task.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)
        failure = None if told.cancelled() else told.exception()
        if not isinstance(failure, WebSocketDisconnect):
            await self._end(failure)
        return failure

    async def _send(self, work: Awaitable[Any]) -> None:
        value = await work
        if not isinstance(value, Stream):
            await self._tell("item", value)
            return
        async with aclosing(value) as items:
            while True:
                await self._credits.take(self._scope)
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                await self._tell(event_name(item), item)

    async def _listen(self) -> None:
        """Takes credits in; ends, by raising, when the client wants no more."""
        while True:
            text = await self._socket.receive_text()
            try:
                grant = _grants.decode(text)
            except msgspec.DecodeError as error:
                raise InvalidInput(f'the message cannot be read: {error}; expected {{"credit": 8}}') from error
            if grant.cancel:
                raise Cancelled("the client has cancelled the request")
            self._credits.grant(grant.credit)

    async def _tell(self, event: str, data: Any) -> None:
        self._sent += 1
        message = encode_json({"seq": self._sent, "event": event, "data": data})
        await self._socket.send_text(message.decode())

    async def _end(self, failure: BaseException | None) -> None:
        try:
            if failure is None:
                await self._tell("done", self._summary(self._sent))
            elif isinstance(failure, Exception):
                await tell_failure(self._socket, failure, self._scope.id, after=self._sent)
            await self._socket.close(_NORMAL if failure is None else _WRONG)
        except (RuntimeError, WebSocketDisconnect):  # RuntimeError is Starlette's, for a socket that is closed
            return


async def tell_failure(socket: WebSocket, error: Exception, request_id: str, *, after: int = 0) -> None:
    """Sends an error as the last message."""
    failure = error if isinstance(error, HeadraceError) else as_step_failure(error, "gateway", request_id)
    message = {"seq": after + 1, "event": "error", "data": body_of(failure, request_id) | {"seq": after}}
    await socket.send_text(encode_json(message).decode())
