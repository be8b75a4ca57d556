"""One request from its arrival to its last byte, and what is told of it when it has ended."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import HTTPConnection

from engine.errors import Cancelled
from engine.scope import Scope
from engine.spans import OpenSpan
from engine.stream import Stream
from engine.trace import Trace
from serve.gateway.metrics import Metrics
from serve.gateway.telemetry import Telemetry

_log = logging.getLogger("headrace")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Counted(AsyncIterator[Any]):
    """A stream, its items counted, the first one's time noted, and what ended it early."""

    def __init__(self, source: Stream[Any]) -> None:
        self._source = source
        self.items = 0
        self.first: float | None = None  # monotonic time
        self.error: BaseException | None = None

    async def __anext__(self) -> Any:
        try:
            item = await anext(self._source)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self.error = error
            raise
        self.first = self.first or time.monotonic()
        self.items += 1
        return item

    async def aclose(self) -> None:
        """Stops whoever produces the items."""
        await self._source.aclose()


class Exchange:
    """One request; when it ends it is counted, logged in one line, and its span, if it has one, is exported.

    Args:
        connection: Whose headers give an id (X-Request-Id) and a trace (traceparent), if they do.
        method: "POST", or "WS" for a socket.
        graph: Name of the graph that is asked; empty when there is none of that name.
        metrics: Where it is counted.
        telemetry: Where spans go.

    Attributes:
        id: The request's id.
        began: Monotonic time of its arrival.
    """

    def __init__(
        self, connection: HTTPConnection, method: str, graph: str, metrics: Metrics, telemetry: Telemetry | None
    ) -> None:
        given = connection.headers.get("x-request-id", "")
        self.id = given if _ID.fullmatch(given) else Scope().id
        self.began = time.monotonic()
        self._method = method
        self._path = connection.scope["path"]
        self._graph = graph
        self._metrics = metrics
        self._scope: Scope | None = None
        self._span: OpenSpan | None = None
        if telemetry is not None:
            name = f"{method} /v1/graphs/{graph}" if graph else method
            self._span = telemetry.arrived(name, connection.headers.get("traceparent"))

    def scope(self, scope: Scope) -> Scope:
        """The scope that the request runs in, with a trace, for the metrics, and the request's span."""
        scope.trace = Trace(scope.clock)
        scope.span = self._span
        self._scope = scope
        return scope

    def ended(self, status: int, error: BaseException | None = None) -> None:
        """The last byte has been sent, or nobody wants it any more. What the client did wrong is no error of ours."""
        self._end(status, error if status >= 499 else None, {})

    def streamed(self, counted: Counted) -> None:
        """As `ended`, of a stream: its status was sent before it began."""
        first_s = None if counted.first is None else counted.first - self.began
        self._metrics.streamed(self._graph, counted.items, first_s)
        error = counted.error
        if error is None and self._scope is not None and self._scope.cancelled:
            error = Cancelled("the client has gone, or takes nothing")
        self._end(200, error, {"events": counted.items})

    def _end(self, status: int, error: BaseException | None, more: dict[str, int]) -> None:
        seconds = time.monotonic() - self.began
        self._metrics.ended(self._graph, status, seconds)
        if self._scope is not None:
            self._metrics.ran(self._graph, self._scope)
        fields: dict[str, Any] = {
            "request_id": self.id,
            "graph": self._graph or None,
            "method": self._method,
            "path": self._path,
            "status": status,
            "milliseconds": round(seconds * 1e3, 1),
            **more,
        }
        if self._span is not None:
            fields["trace_id"] = self._span.context.trace_id
            self._end_span(status, error, more)
        line = f"{self._method} {self._path} {status} {seconds * 1e3:.0f} ms"
        events = f", {more['events']} events" if more else ""
        _log.info("%s%s %s", line, events, self.id, extra=fields)

    def _end_span(self, status: int, error: BaseException | None, more: dict[str, int]) -> None:
        span: OpenSpan = self._span  # type: ignore[assignment] # only called with one
        span.attributes |= {
            "http.request.method": "GET" if self._method == "WS" else self._method,
            "http.response.status_code": status,
            "url.path": self._path,
            "headrace.request_id": self.id,
        }
        if self._graph:
            span.attributes["headrace.graph"] = self._graph
        span.attributes |= {f"headrace.{name}": value for name, value in more.items()}
        span.end(error)
