"""A host behind bytes: the far side of every transport that leaves the process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from engine.credits import Chunk
from engine.errors import HeadraceError, RequestEnded
from engine.host import Host
from engine.method import Method, method_of
from engine.scope import Scope
from engine.spans import OpenSpan, SpanBuffer, SpanContext
from engine.supervise import as_step_failure
from engine.wire import NOTHING, ChunkWire, Close, Pull, Reply, Request, decoder, encode, encode_error

_EMPTY = msgspec.Raw(encode([]))


class Endpoint:
    """Answers the data plane's frames (engine.wire) for one host; never raises but when it is itself cancelled.

    Args:
        host: Who runs the methods.
        methods: Their types, as the caller sees them; those of others are read off the state's class.
    """

    def __init__(self, host: Host, methods: Mapping[str, Method] | None = None) -> None:
        self.host = host
        self._methods = dict(methods or {})
        self._spans = SpanBuffer()

    async def handle(self, verb: str, frame: bytes) -> bytes:
        """The answer to one frame; `verb` is call, open, open_live, pull, close or statistics."""
        if verb == "call":
            return await self._call(decoder(Request).decode(frame))
        if verb in ("open", "open_live"):
            return await self._open(decoder(Request).decode(frame), live=verb == "open_live")
        if verb == "pull":
            pull: Pull = decoder(Pull).decode(frame)
            return await self._chunk(self.host.pull(pull.id, pull.ack, pull.credits), "pull", traced=pull.traced)
        if verb == "close":
            close: Close = decoder(Close).decode(frame)
            await self.host.close(close.id, close.reason)
            return b""
        return encode(self.host.statistics())

    def _args(self, request: Request) -> tuple[Any, ...]:
        args: tuple[Any, ...] = decoder(self._method(request.method).args).decode(request.args)
        return args

    def _method(self, name: str) -> Method:
        owner: type = type(self.host.state)
        return self._methods.get(name) or method_of(owner, name)

    def _span(self, request: Request) -> OpenSpan | None:
        """The span of answering it, a part of the caller's; None for one whose caller has none."""
        header = request.scope.trace_parent
        parent = None if header is None else SpanContext.from_header(header)
        if parent is None:
            return None
        span = OpenSpan(f"{type(self.host.state).__name__}.{request.method}", self._spans, parent, served=True)
        span.attributes |= {"headrace.request_id": request.scope.id, "process.pid": os.getpid()}
        return span

    async def _call(self, request: Request) -> bytes:
        scope = Scope.from_wire(request.scope)
        span = scope.span = self._span(request)
        if span is None:
            return encode(await self._reply(request, scope))
        with span:
            reply = await self._reply(request, scope)
        if scope.ended:  # nobody reads this answer; spans wait for the next one
            return encode(reply)
        return encode(msgspec.structs.replace(reply, spans=self._spans.take()))

    async def _reply(self, request: Request, scope: Scope) -> Reply:
        try:
            answer = await self.host.call(request.method, self._args(request), scope, id=request.id)
            notes = [] if scope.trace is None else scope.trace.notes
            value = msgspec.Raw(encode(answer.value))
            if scope.span is not None:
                scope.span.cost(answer.queued_s, answer.served_s, answer.batch)
            return Reply(
                answer.queued_s, answer.served_s, value, None, notes, float(answer.weight), answer.epoch, answer.batch
            )
        except Exception as error:  # noqa: BLE001 - the supervisor boundary: it travels, and is raised at the caller
            failure = as_step_failure(error, request.method, scope.id)
            if scope.span is not None:
                scope.span.end(failure)
            return Reply(0.0, 0.0, NOTHING, encode_error(failure))

    async def _open(self, request: Request, *, live: bool) -> bytes:
        scope = Scope.from_wire(request.scope)
        scope.span = self._span(request)
        opening = self._opened(request, scope, live=live)
        return await self._chunk(opening, request.method, traced=scope.span is not None)

    async def _opened(self, request: Request, scope: Scope, *, live: bool) -> Chunk:
        try:
            return await self.host.open(
                request.id,
                request.method,
                self._args(request),
                scope,
                live=live,
                credits=request.credits,
                span=scope.span,
            )
        except Exception as error:
            if scope.span is not None:
                scope.span.end(error)
            raise

    async def _chunk(self, chunk: Any, method: str, *, traced: bool) -> bytes:
        try:
            got: Chunk = await chunk
            error = None if got.error is None else encode_error(got.error)
            items = msgspec.Raw(encode(got.items))
            spans = self._spans.take() if traced and not isinstance(got.error, RequestEnded) else []
            return encode(ChunkWire(got.seq0, items, got.done, got.queued_s, got.served_s, error, spans))
        except Exception as error:  # noqa: BLE001 - as in _reply
            failure: HeadraceError = as_step_failure(error, method, None)
            return encode(ChunkWire(0, _EMPTY, True, 0.0, 0.0, encode_error(failure)))
