"""Spans that cross processes: their identity is W3C's trace context, and they wait here until somebody exports them.

A span of `engine.trace` says what a step of one request cost. A span of this module says so to a tracing system: it has
an identity that can be named from another process, a parent, links and an error. It is made only where the request's
scope carries an open span, which a gateway puts there for requests that are sampled; without one nothing here runs.

What the far side of a hop records waits in its endpoint and rides home on the next answer to a traced request
(`Reply.spans`). So only who asked needs an exporter, and a process that runs a stage needs no package, no configuration
and no way to a collector.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

Value = str | bool | int | float

# https://www.w3.org/TR/trace-context/#traceparent-header; later versions may append fields
_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class SpanContext(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What names a span everywhere: 16 and 8 bytes in hexadecimal digits, and whether its trace is recorded."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def to_header(self) -> str:
        """As a `traceparent` header says it.

        >>> SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331").to_header()
        '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
        """
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"

    @classmethod
    def from_header(cls, text: str) -> SpanContext | None:
        """What a `traceparent` header names; None when it is not one, for then a trace is to begin anew."""
        found = _HEADER.fullmatch(text.strip())
        if found is None or (found[1] == "00" and found[5] is not None):
            return None
        return cls(found[2], found[3], bool(int(found[4], 16) & 1))


class SpanRecord(msgspec.Struct, array_like=True, frozen=True):
    """A span that has ended; times are nanoseconds since 1970 by the clock of where it ran."""

    trace_id: str
    span_id: str
    parent_id: str  # empty for the first span of a trace
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value] = {}
    links: list[SpanContext] = []
    error: str = ""  # empty when it went well
    served: bool = False  # it answers another process: the first span of a request, or of the far side of a hop


class SpanBuffer:
    """Spans that have ended and are not exported yet; the oldest give way when it is full. Any thread may add.

    Args:
        most: Spans that it holds.
    """

    def __init__(self, most: int = 4096) -> None:
        self._records: deque[SpanRecord] = deque(maxlen=most)
        self.lost = 0

    def add(self, record: SpanRecord) -> None:
        """Keep a span."""
        self.lost += len(self._records) == self._records.maxlen
        self._records.append(record)

    def extend(self, records: Iterable[SpanRecord]) -> None:
        """Keep spans."""
        for record in records:
            self.add(record)

    def take(self, most: int = 1024) -> list[SpanRecord]:
        """The oldest spans, which are no longer kept; one thread at a time may take."""
        return [self._records.popleft() for _ in range(min(most, len(self._records)))]


class OpenSpan:
    """A span that has begun. It ends once, and is then kept in its buffer; as a context it ends with its block.

    Args:
        name: What is being done.
        buffer: Where it goes when it has ended.
        parent: The span that it is a part of; None begins a trace.
        links: Spans that it has to do with and is no part of.
        served: See SpanRecord.
    """

    __slots__ = ("_began", "_buffer", "_ended", "_links", "_parent_id", "_served", "_start_ns", "attributes", "context",
                 "name")  # fmt: skip

    def __init__(
        self,
        name: str,
        buffer: SpanBuffer,
        parent: SpanContext | None = None,
        *,
        links: Sequence[SpanContext] = (),
        served: bool = False,
    ) -> None:
        self.name = name
        trace_id = secrets.token_hex(16) if parent is None else parent.trace_id
        self.context = SpanContext(trace_id, secrets.token_hex(8))
        self.attributes: dict[str, Value] = {}
        self._parent_id = "" if parent is None else parent.span_id
        self._buffer = buffer
        self._links = links
        self._served = served
        self._ended = False
        self._start_ns = time.time_ns()
        self._began = time.monotonic_ns()  # a clock that is set meanwhile must not make the span end before it began

    def child(self, name: str, *, links: Sequence[SpanContext] = ()) -> OpenSpan:
        """A span of a part of this one's work."""
        return OpenSpan(name, self._buffer, self.context, links=links)

    def cost(self, queued_s: float, served_s: float, batch: int = 0) -> None:
        """Note what the work cost where it ran; `batch` is the number of items that ran together, 0 for no batch."""
        self.attributes["headrace.queued_ms"] = round(queued_s * 1e3, 3)
        self.attributes["headrace.served_ms"] = round(served_s * 1e3, 3)
        if batch:
            self.attributes["headrace.batch_items"] = batch

    def receive(self, records: Iterable[SpanRecord]) -> None:
        """Keep spans that came from the far side of a hop."""
        self._buffer.extend(records)

    def end(self, error: BaseException | str | None = None) -> None:
        """The work is done, or `error` ended it. Later calls do nothing."""
        if self._ended:
            return
        self._ended = True
        end_ns = self._start_ns + time.monotonic_ns() - self._began
        self._buffer.add(
            SpanRecord(
                self.context.trace_id,
                self.context.span_id,
                self._parent_id,
                self.name,
                self._start_ns,
                end_ns,
                self.attributes,
                list(self._links),
                _told(error),
                self._served,
            )
        )

    def __enter__(self) -> OpenSpan:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)


def _told(error: BaseException | str | None) -> str:
    if error is None or isinstance(error, str):
        return error or ""
    if isinstance(error, GeneratorExit):  # who read the items has had enough of them
        return ""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return f"{type(error).__name__}: {error}"
