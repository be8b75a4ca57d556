"""OpenTelemetry for a gateway: the first span of each sampled request, and the export of all that follow from it."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from engine.errors import InvalidInput
from engine.spans import OpenSpan, SpanBuffer, SpanContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_EVERY_S = 1.0
_MOST = 16_384  # spans that end in that time
_log = logging.getLogger("headrace")


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where spans go; a gateway without this section records none.

    Args:
        otlp_endpoint: Base URL of a collector that speaks OTLP over HTTP; spans are posted to /v1/traces below it.
        service_name: What the collector knows this service by.
        sample_ratio: Share, 0 to 1, of the requests that are recorded. One with a `traceparent` header is recorded if
            its caller records it, and only then.
        headers: HTTP headers for the collector, such as an API key.
        timeout_seconds: How long it is tried to hand a batch of spans over before that is dropped.

    Raises:
        InvalidInput: A value is wrong.
    """

    otlp_endpoint: str = "http://localhost:4318"
    service_name: str = "headrace"
    sample_ratio: float = 1.0
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        where = urlsplit(self.otlp_endpoint)
        if where.scheme not in ("http", "https") or not where.hostname:
            raise InvalidInput(
                f"serve.telemetry.otlp_endpoint is {self.otlp_endpoint!r}; expected a URL like http://localhost:4318"
            )
        if not 0 <= self.sample_ratio <= 1:
            raise InvalidInput(f"serve.telemetry.sample_ratio is {self.sample_ratio!r}; expected a share from 0 to 1")
        if not self.timeout_seconds > 0:
            raise InvalidInput(f"serve.telemetry.timeout_seconds is {self.timeout_seconds!r}; expected seconds above 0")


class Telemetry:
    """Begins the spans of requests, and hands over what has ended, about once a second, in a thread of its own.

    When the collector is away, batches are dropped and the log says so; requests never wait for it.

    Args:
        config: Where spans go, and which.
        exporter: What takes them; OTLP over HTTP when absent.

    Raises:
        InvalidInput: The packages are not installed.
    """

    def __init__(self, config: TelemetryConfig, exporter: SpanExporter | None = None) -> None:
        try:
            from serve.gateway.otel import Export, otlp_exporter  # noqa: PLC0415 - an extra; without telemetry not needed
        except ImportError as error:
            raise InvalidInput(
                f"the configuration has a section for telemetry, but {error.name} is not installed; "
                "install it with: pip install 'headrace[otel]'"
            ) from error
        self._ratio = config.sample_ratio
        self._buffer = SpanBuffer(_MOST)
        self._lost = 0
        self._export = Export(config.service_name, exporter or otlp_exporter(config))
        self._one_at_a_time = threading.Lock()
        self._exporting: asyncio.Task[None] | None = None

    def arrived(self, name: str, traceparent: str | None = None) -> OpenSpan | None:
        """The first span of a request, a part of its caller's trace if it names one; None if it is not recorded."""
        parent = None if traceparent is None else SpanContext.from_header(traceparent)
        sampled = random.random() < self._ratio if parent is None else parent.sampled
        return OpenSpan(name, self._buffer, parent, served=True) if sampled else None

    def start(self) -> None:
        """Begin to export, in the running event loop."""
        if self._exporting is None:
            self._exporting = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await asyncio.to_thread(self._hand_over)

    def _hand_over(self) -> None:
        with self._one_at_a_time:
            while records := self._buffer.take():
                for record in records:
                    self._export.add(record)
            if lost := self._buffer.lost - self._lost:
                self._lost += lost
                _log.warning("%d spans were lost: too many at once; lower serve.telemetry.sample_ratio", lost)

    async def aclose(self) -> None:
        """Export what is left; waits for the collector no longer than the configuration says."""
        if self._exporting is not None:
            self._exporting.cancel()
            await asyncio.wait([self._exporting])
        await asyncio.to_thread(self._hand_over)
        await asyncio.to_thread(self._export.close)
