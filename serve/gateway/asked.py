"""What a request asks of a graph: its inputs and a few options, read from JSON."""

from __future__ import annotations

import math
from typing import Any, Literal, get_origin

import msgspec

from engine.errors import GraphError, InvalidInput
from engine.graph import Graph
from engine.stream import Stream
from operators.corpus.content import holds_nul

OPTIONS: dict[str, tuple[Any, Any]] = {
    "stream": (bool | None, None),
    "timeout_seconds": (float | None, None),
    "priority": (Literal["interactive", "batch"], "interactive"),
    "resume_seconds": (float, 0.0),
}


class Asked(msgspec.Struct, frozen=True):
    """A request's inputs, in the graph's order, and its options.

    Attributes:
        stream: Whether events are wanted; None leaves it to the Accept header.
        timeout_seconds: Time for the whole request; None: the gateway's.
        priority: Who is served first where work queues.
        resume_seconds: How long a stream goes on, and waits, without its client.
    """

    inputs: tuple[Any, ...]
    stream: bool | None
    timeout_seconds: float | None
    priority: str
    resume_seconds: float


class Body:
    """The JSON that a graph takes: an object with its inputs by name, and the options.

    Raises:
        GraphError: An input is called like an option, or is of a type that JSON has no form for.
    """

    def __init__(self, graph: Graph[..., Any]) -> None:
        self._inputs = [parameter.name for parameter in graph.inputs]
        taken = sorted({*self._inputs} & {*OPTIONS})
        if taken:
            raise GraphError(f"graph {graph.name!r} cannot be served: its input {taken[0]!r} is a request's option")
        fields = [(p.name, p.annotation) if p.default is p.empty else (p.name, p.annotation, p.default)
                  for p in graph.inputs]  # fmt: skip
        options = [(name, kind, default) for name, (kind, default) in OPTIONS.items()]
        self.type = msgspec.defstruct(
            f"{graph.name}_request", [*fields, *options], kw_only=True, frozen=True, forbid_unknown_fields=True
        )
        self.streams = get_origin(graph.result) is Stream
        try:
            self._decoder = msgspec.json.Decoder(self.type)
            self.schema = msgspec.json.schema(self.type)
        except TypeError as error:
            raise GraphError(f"graph {graph.name!r} cannot be served: an input has no form in JSON: {error}") from error

    def read(self, raw: bytes) -> Asked:
        """What the bytes ask for.

        Raises:
            InvalidInput: They are not JSON in UTF-8, or not what the graph takes.
        """
        if holds_nul(raw) or b"\0" in raw:
            raise InvalidInput("the body holds a NUL character; remove it")
        try:
            body: Any = self._decoder.decode(raw)
            raw.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"the body cannot be read: {error}; expected {self._example()}") from error
        seconds = body.timeout_seconds
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise InvalidInput(f"timeout_seconds is {seconds}; expected a number above 0")
        if not (math.isfinite(body.resume_seconds) and body.resume_seconds >= 0):
            raise InvalidInput(f"resume_seconds is {body.resume_seconds}; expected 0 or more")
        if body.stream and not self.streams:
            raise InvalidInput("this graph gives one value and no stream; leave stream out")
        return Asked(tuple(getattr(body, name) for name in self._inputs), *(getattr(body, name) for name in OPTIONS))

    def _example(self) -> str:
        inputs = ", ".join(f'"{name}": ...' for name in self._inputs)
        return f"a JSON object {{{inputs}}} and, if you like, {', '.join(OPTIONS)}"
