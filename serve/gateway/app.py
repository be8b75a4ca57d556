"""The gateway: graphs behind HTTP, in one event loop.

::

    POST /v1/graphs/NAME        run a graph: one JSON object, or server-sent events
    WS   /v1/graphs/NAME/socket the same with credits, item by item; see sockets.py
    GET  /v1/graphs             what there is, and each graph's picture (JSON; /NAME.mmd, /NAME.svg)
    GET  /v1/streams            an interrupted stream, from Last-Event-ID on
    GET  /health /ready         whether the process lives; whether its graphs have started
    GET  /metrics /openapi.json
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from engine.edges import show
from engine.errors import Cancelled, HeadraceError, InvalidInput, StageDied
from engine.explain import explain
from engine.graph import Graph
from engine.picture import mermaid, svg
from engine.run import EngineName, Opener, Running, Session
from engine.scope import Priority, Scope
from engine.stream import Stream
from operators.partial import partial_of
from serve.gateway.admission import Admission
from serve.gateway.asked import Asked, Body
from serve.gateway.config import GatewayConfig
from serve.gateway.exchange import Counted, Exchange
from serve.gateway.frames import encode_json
from serve.gateway.metrics import Metrics
from serve.gateway.openapi import openapi
from serve.gateway.problems import Refused, status_of
from serve.gateway.readiness import readiness
from serve.gateway.responses import failure_response, json_response, refused_by_http
from serve.gateway.sockets import Conversation, tell_failure
from serve.gateway.streams import Events, LiveStream, LiveStreams, unless_gone
from serve.gateway.telemetry import Telemetry

_TIMEOUT = "x-request-timeout-seconds"

Answering = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class _Served:
    """A graph and how it is asked over HTTP."""

    graph: Graph[..., Any]
    body: Body


class Gateway:
    """Serves graphs; `app` is the ASGI application.

    Args:
        graphs: What to serve, by their names.
        config: Limits.
        engine: Where stages run; see Session.

    Raises:
        GraphError: A graph cannot be asked in JSON.
        InvalidInput: There is to be telemetry, and its packages are not installed.
    """

    def __init__(
        self,
        graphs: Sequence[Graph[..., Any]],
        config: GatewayConfig | None = None,
        *,
        engine: EngineName | Opener = "local",
    ) -> None:
        self.config = config or GatewayConfig()
        self._served = {graph.name: _Served(graph, Body(graph)) for graph in graphs}
        self._running: dict[str, Running[..., Any]] = {}
        self._session = Session(engine)
        self._admission = Admission(self.config.active, self.config.waiting)
        self._watching: asyncio.Task[None] | None = None
        self._streams = LiveStreams(self.config)
        self._metrics = Metrics(graphs, self._admission, lambda: self._session.pools)
        self._telemetry = None if self.config.telemetry is None else Telemetry(self.config.telemetry)
        self.app = Starlette(
            routes=[
                Route("/v1/graphs", self._told(self._list)),
                Route("/v1/graphs/{name}", self._told(self._run), methods=["POST"]),
                Route("/v1/graphs/{name}", self._told(self._picture), methods=["GET"]),
                WebSocketRoute("/v1/graphs/{name}/socket", self._converse),
                Route("/v1/streams", self._told(self._resume)),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._show_metrics),
                Route("/openapi.json", self._openapi),
            ],
            exception_handlers={HTTPException: refused_by_http},
        )

    async def start(self) -> None:
        """Starts the stages; until it returns, graphs answer that they are not ready.

        Raises:
            HeadraceError: One could not be started.
        """
        self._watching = asyncio.create_task(self._admission.watch())
        if self._telemetry is not None:
            self._telemetry.start()
        for name, served in self._served.items():
            self._running[name] = await self._session.start(served.graph)

    async def aclose(self) -> None:
        """Gives up every stream and ends the stages."""
        self._running = {}
        if self._watching is not None:
            self._watching.cancel()
        await self._streams.aclose()
        await self._session.aclose()
        if self._telemetry is not None:
            await self._telemetry.aclose()

    # Running a graph

    async def _run(self, request: Request) -> Response:
        if last := request.headers.get("last-event-id"):
            return self._events_after(last)
        name = request.path_params["name"]
        running, asked = self._asked(name, await self._read(request))
        scope = self._scope(request, request.state.exchange, asked)
        if _wants_events(request, asked, streams=self._served[name].body.streams):
            return await self._stream(request, name, running, asked, scope)
        work = self._answer(name, running, asked, scope)
        return json_response(await unless_gone(request.receive, work, scope), {"x-request-id": scope.id})

    def _asked(self, name: str, body: bytes) -> tuple[Running[..., Any], Asked]:
        if (served := self._served.get(name)) is None:
            raise Refused(404, f"there is no graph {name!r}; there are {', '.join(self._served)}")
        asked = served.body.read(body)
        if (running := self._running.get(name)) is None:
            raise StageDied("the graphs are being started; come back shortly")
        return running, asked

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self.config.body_bytes:
                raise Refused(413, f"the body is longer than {self.config.body_bytes:,} bytes; send less")
        return bytes(body)

    def _scope(self, request: HTTPConnection, exchange: Exchange, asked: Asked) -> Scope:
        limits = [self.config.longest_seconds]
        if _TIMEOUT in request.headers:
            limits.append(_seconds(request.headers[_TIMEOUT]))
        if asked.timeout_seconds is not None:
            limits.append(asked.timeout_seconds)
        if len(limits) == 1:
            limits.append(self.config.timeout_seconds)
        priority = Priority.BATCH if asked.priority == "batch" else Priority.INTERACTIVE
        return exchange.scope(Scope(exchange.id, timeout_s=min(limits), priority=priority))

    async def _answer(self, name: str, running: Running[..., Any], asked: Asked, scope: Scope) -> bytes:
        """One JSON object; of a stream its last item, which sums it up in our graphs."""
        began = time.monotonic()
        async with self._admission.admitted(scope):
            value = await running.within(scope)(*asked.inputs)
            if isinstance(value, Stream):
                async with aclosing(value) as items:
                    value = None
                    async for item in items:
                        value = item
        return encode_json(self._envelope(name, scope, began) | {"result": value})

    def _envelope(self, name: str, scope: Scope, began: float) -> dict[str, Any]:
        partial = partial_of(scope)
        if partial is not None:
            self._metrics.partial(name)
        epochs: dict[str, dict[str, list[int]]] = {}
        for (stage, shard), seen in sorted(scope.epochs.items()):
            if seen != {0}:  # a stage without data that changes
                epochs.setdefault(stage, {})[str(shard)] = sorted(seen)
        return {
            "id": scope.id,
            "graph": name,
            "hash": self._served[name].graph.hash,
            "partial": partial,
            "epochs": epochs,
            "mixed_epochs": any(len(seen) > 1 for seen in scope.epochs.values()),
            "elapsed_ms": round((time.monotonic() - began) * 1e3, 1),
        }

    # Streams

    async def _stream(
        self, request: Request, name: str, running: Running[..., Any], asked: Asked, scope: Scope
    ) -> Response:
        """Events, once the stream is there: what fails before is an answer of its own, with its own status."""
        exchange: Exchange = request.state.exchange
        stream = LiveStream(scope, self.config, patience_s=asked.resume_seconds)
        self._streams.add(stream)
        place = AsyncExitStack()
        try:
            await unless_gone(request.receive, place.enter_async_context(self._admission.admitted(scope)), scope)
            source = await unless_gone(request.receive, running.within(scope)(*asked.inputs), scope)
        except BaseException:
            self._streams.discard(stream.id)
            await place.aclose()
            raise
        counted = Counted(source)

        async def ended() -> None:
            await counted.aclose()
            await place.aclose()
            exchange.streamed(counted)
            self._streams.forget_later(scope.id)

        stream.start(counted, lambda: self._envelope(name, scope, exchange.began) | {"events": counted.items}, ended)
        return Events(stream, 0, self.config)

    async def _converse(self, socket: WebSocket) -> None:
        """A request over a WebSocket."""
        await socket.accept()
        exchange = self._exchange(socket, "WS")
        failure: BaseException | None = None
        name = socket.path_params["name"]
        try:
            running, asked = self._asked(name, (await socket.receive_text()).encode())
            scope = self._scope(socket, exchange, asked)
            async with self._admission.admitted(scope):
                conversation = Conversation(
                    socket, scope, lambda sent: self._envelope(name, scope, exchange.began) | {"events": sent}
                )
                failure = await conversation.hold(running.within(scope)(*asked.inputs))
        except WebSocketDisconnect as error:
            failure = error
        except HeadraceError as error:
            failure = error
            await tell_failure(socket, error, exchange.id)
            await socket.close(1008)
        finally:
            exchange.ended(_socket_status(failure), failure)

    async def _resume(self, request: Request) -> Response:
        last = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        if not last:
            raise InvalidInput("which stream? send the id of the last event that you have as Last-Event-ID")
        return self._events_after(last)

    def _events_after(self, last_event_id: str) -> Response:
        stream, number = self._streams.resumed(last_event_id)
        return Events(stream, number, self.config)

    # Looking at it

    async def _list(self, _: Request) -> Response:
        return json_response(encode_json({"graphs": [_described(served) for served in self._served.values()]}))

    async def _picture(self, request: Request) -> Response:
        name, dot, form = request.path_params["name"].partition(".")
        if (served := self._served.get(name)) is None or form not in ("", "mmd", "svg", "txt") or (dot and not form):
            raise Refused(
                404,
                f"there is no {request.path_params['name']!r}; there are {', '.join(self._served)}, .mmd, .svg, .txt",
            )
        if form == "svg":
            return Response(svg(served.graph), media_type="image/svg+xml")
        if form:
            return Response(mermaid(served.graph) if form == "mmd" else explain(served.graph), media_type="text/plain")
        return json_response(encode_json(_described(served)))

    async def _health(self, _: Request) -> Response:
        return json_response(b'{"status":"ok"}')

    async def _ready(self, _: Request) -> Response:
        ready, told = readiness(self._served, self._running, self._session.pools)
        return json_response(encode_json(told), status=200 if ready else 503)

    async def _show_metrics(self, _: Request) -> Response:
        return Response(await self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, _: Request) -> Response:
        return json_response(encode_json(openapi({name: served.body for name, served in self._served.items()})))

    # Around every request

    def _exchange(self, connection: HTTPConnection, method: str) -> Exchange:
        name = connection.path_params.get("name", "")
        graph = name if name in self._served else ""
        telemetry = self._telemetry if method in ("POST", "WS") else None
        return Exchange(connection, method, graph, self._metrics, telemetry)

    def _told(self, endpoint: Answering) -> Answering:
        """The endpoint, with a request id, a line in the log, and its failures as JSON."""

        async def answering(request: Request) -> Response:
            exchange = request.state.exchange = self._exchange(request, request.method)
            failure: BaseException | None = None
            try:
                response = await endpoint(request)
            except (asyncio.CancelledError, ClientDisconnect):
                if asyncio.current_task() is not None and asyncio.current_task().cancelling():  # type: ignore[union-attr] # not None
                    raise
                failure = Cancelled("the client has gone")
                response = failure_response(failure, exchange.id)
            except Exception as error:  # noqa: BLE001 - the supervisor boundary: the client reads it, the log has the rest
                failure = error
                response = failure_response(error, exchange.id)
            if request.method == "POST" and not isinstance(response, Events):  # streams are counted when they end
                exchange.ended(response.status_code, failure)
            return response

        return answering


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidInput(f"{_TIMEOUT} is {text!r}; expected seconds above 0")
    return seconds - min(
        0.05, 0.1 * seconds
    )  # Ray Serve knows the header, too, and then cuts off with a text of its own


def _socket_status(failure: BaseException | None) -> int:
    """How a socket's request went, in the numbers of HTTP."""
    if failure is None:
        return 101
    if isinstance(failure, WebSocketDisconnect):
        return status_of(Cancelled(""))
    return status_of(failure) if isinstance(failure, HeadraceError) else 500


def _wants_events(request: Request, asked: Asked, *, streams: bool) -> bool:
    """As the body says; else as the Accept header says."""
    if asked.stream is not None:
        return asked.stream
    return streams and "text/event-stream" in request.headers.get("accept", "")


def _described(served: _Served) -> dict[str, Any]:
    graph = served.graph
    return {
        "name": graph.name,
        "doc": graph.doc,
        "hash": graph.hash,
        "inputs": {p.name: show(p.annotation) for p in graph.inputs},
        "result": show(graph.result),
        "streams": served.body.streams,
        "steps": [
            {
                "name": node.name,
                "inputs": [graph.inputs[s].name if s < len(graph.inputs) else _name(graph, s) for s in node.sources],
                "result": show(node.step.result),
                "stage": node.step.stage.name if node.step.stage else None,
            }
            for node in graph.nodes
        ],
        "stages": {stage.name: stage.describe() for stage in graph.stages},
        "notes": graph.notes,
    }


def _name(graph: Graph[..., Any], index: int) -> str:
    return graph.nodes[index - len(graph.inputs)].name
