"""Spans as OpenTelemetry's SDK has them; the one module that imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from engine.spans import SpanRecord

if TYPE_CHECKING:
    from serve.gateway.telemetry import TelemetryConfig

_QUEUE = 20_000  # more than the gateway's buffer holds, so that all of it can be handed over at once
_EVERY_MS = 1000


def otlp_exporter(config: TelemetryConfig) -> SpanExporter:
    """What posts spans to the collector that `config` names."""
    url = f"{config.otlp_endpoint.rstrip('/')}/v1/traces"
    return OTLPSpanExporter(endpoint=url, headers=config.headers, timeout=config.timeout_seconds)


class Export:
    """Takes spans that have ended and gives them to an exporter, in batches; one thread at a time may add.

    The tracer provider is its own, not the process's: Ray and the user's code may have theirs.

    Args:
        service_name: What the spans' resource is called.
        exporter: Who takes them.
    """

    def __init__(self, service_name: str, exporter: SpanExporter) -> None:
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # who is recorded was decided when the request came
            resource=Resource.create({SERVICE_NAME: service_name}),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=_QUEUE, schedule_delay_millis=_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("headrace")

    def add(self, record: SpanRecord) -> None:
        """Take a span."""
        self._ids.trace_id, self._ids.span_id = int(record.trace_id, 16), int(record.span_id, 16)
        parent = _context(record.trace_id, record.parent_id) if record.parent_id else None
        span = self._tracer.start_span(
            record.name,
            None if parent is None else set_span_in_context(NonRecordingSpan(parent)),
            kind=SpanKind.SERVER if record.served else SpanKind.INTERNAL,
            attributes=record.attributes,
            links=[Link(_context(link.trace_id, link.span_id)) for link in record.links],
            start_time=record.start_ns,
        )
        if record.error:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(record.end_ns)

    def close(self) -> None:
        """Hand over what is left."""
        self._provider.shutdown()


class _GivenIds(IdGenerator):
    """The ids that the next span has got already, where it was recorded."""

    trace_id = span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
