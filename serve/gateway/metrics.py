"""What a gateway counts, in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.pool import Pool
from serve.gateway.admission import Admission

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _Stages(Collector):
    """What became of the calls of every shard, read when it is asked for."""

    def __init__(self, pools: Callable[[], Iterable[Pool]]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        labels = ["stage", "shard"]
        outstanding = GaugeMetricFamily("headrace_calls_outstanding", "Calls that have not ended.", labels=labels)
        events = CounterMetricFamily("headrace_calls", "Calls by what became of them.", labels=[*labels, "event"])
        for pool in self._pools():
            for number, shard in enumerate(pool.shards):
                place = [pool.stage.name, str(number)]
                outstanding.add_metric(place, shard.outstanding)
                counters = shard.counters
                for event in counters.__struct_fields__:
                    events.add_metric([*place, event], getattr(counters, event))
        yield outstanding
        yield events


class Metrics:
    """The counters of one gateway; two in one process do not mix.

    Args:
        admission: Whose places are shown.
        pools: The stages that run.
    """

    def __init__(self, admission: Admission, pools: Callable[[], Iterable[Pool]]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "headrace_requests", "Requests by graph and status.", ["graph", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "headrace_request_seconds",
            "From a request's arrival to its last byte.",
            ["graph"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._first = Histogram(
            "headrace_first_event_seconds",
            "From a request's arrival to its stream's first event.",
            ["graph"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._events = Counter("headrace_events", "Events of streams.", ["graph"], registry=self._registry)
        self._partial = Counter("headrace_partial", "Answers without some shards.", ["graph"], registry=self._registry)
        gauges: list[tuple[str, str, Callable[[], float]]] = [
            ("headrace_requests_active", "Requests that run.", lambda: admission.active),
            ("headrace_requests_waiting", "Requests that wait.", lambda: admission.waiting),
            ("headrace_requests_refused", "Requests that found no place, so far.", lambda: admission.refused),
        ]
        for name, text, value in gauges:
            Gauge(name, text, registry=self._registry).set_function(value)
        self._registry.register(_Stages(pools))

    def ended(self, graph: str, status: int, seconds: float) -> None:
        """A request has ended."""
        self._requests.labels(graph, str(status)).inc()
        self._seconds.labels(graph).observe(seconds)

    def streamed(self, graph: str, events: int, first_after_s: float | None) -> None:
        """A stream has ended that had so many events, the first after so many seconds."""
        self._events.labels(graph).inc(events)
        if first_after_s is not None:
            self._first.labels(graph).observe(first_after_s)

    def partial(self, graph: str) -> None:
        """An answer came from a part of the data."""
        self._partial.labels(graph).inc()

    def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)
