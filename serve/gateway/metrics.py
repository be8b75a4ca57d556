"""What a gateway counts, in the form that Prometheus reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.errors import HeadraceError
from engine.graph import Graph
from engine.host import HostStatistics
from engine.pool import Pool
from engine.replicas import Replicas
from engine.scope import Scope
from engine.transport import Transport
from serve.gateway.admission import Admission
from serve.gateway.step_metrics import Steps

_PATIENCE_S = 1.0  # with a replica that is asked for its counters
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _Stages(Collector):
    """What became of the calls of every shard, and what its replicas say of their streams."""

    def __init__(self, pools: Callable[[], Iterable[Pool]]) -> None:
        self._pools = pools
        self._said: dict[tuple[str, str], list[HostStatistics]] = {}

    async def ask(self) -> None:
        """Ask every replica for its counters; one that is dead or hangs is not waited for."""
        transports = [(place, transport) for place, shard in self._shards() for transport in shard.transports]
        answers = await asyncio.gather(*(_asked(transport) for _, transport in transports))
        self._said = {}
        for (place, _), answer in zip(transports, answers, strict=True):
            self._said.setdefault(place, []).extend(answer)

    def _shards(self) -> Iterator[tuple[tuple[str, str], Replicas]]:
        for pool in self._pools():
            for number, shard in enumerate(pool.shards):
                yield (pool.stage.name, str(number)), shard

    def collect(self) -> Iterator[Metric]:
        labels = ["stage", "shard"]
        outstanding = GaugeMetricFamily("headrace_calls_outstanding", "Calls that have not ended.", labels=labels)
        events = CounterMetricFamily("headrace_calls", "Calls by what became of them.", labels=[*labels, "event"])
        for place, shard in self._shards():
            outstanding.add_metric(place, shard.outstanding)
            counters = shard.counters
            for event in counters.__struct_fields__:
                events.add_metric([*place, event], getattr(counters, event))
        yield from (outstanding, events)
        gauges: list[tuple[str, str, Callable[[HostStatistics], float]]] = [
            ("headrace_replicas", "Replicas that answer.", lambda _: 1),
            ("headrace_streams_open", "Streams that have not ended.", lambda said: said.streams.open),
            ("headrace_stream_credits", "Items that consumers wait for.", lambda said: said.streams.credits),
            ("headrace_stream_items_held", "Items made and not known to be pulled.", lambda said: said.streams.held),
        ]
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for place, said in self._said.items():
                gauge.add_metric(place, sum(value(one) for one in said))
            yield gauge


async def _asked(transport: Transport) -> list[HostStatistics]:
    """What one replica says, if it says anything."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return [await transport.statistics()]
    except (HeadraceError, TimeoutError):
        return []  # so it does not count among the replicas that answer


class Metrics:
    """The counters of one gateway; two in one process do not mix.

    Args:
        graphs: What is served.
        admission: Whose places are shown.
        pools: The stages that run.
    """

    def __init__(
        self, graphs: Sequence[Graph[..., Any]], admission: Admission, pools: Callable[[], Iterable[Pool]]
    ) -> None:
        self._registry = CollectorRegistry()
        self._steps, self._stages = Steps(graphs), _Stages(pools)
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
            ("headrace_requests_limit", "Requests that may run now.", lambda: admission.limit),
            ("headrace_requests_waiting", "Requests that wait.", lambda: admission.waiting),
            ("headrace_requests_refused", "Requests that found no place, so far.", lambda: admission.refused),
        ]
        for name, text, value in gauges:
            Gauge(name, text, registry=self._registry).set_function(value)
        self._registry.register(self._stages)
        self._registry.register(self._steps)

    def ended(self, graph: str, status: int, seconds: float) -> None:
        """A request has ended."""
        self._requests.labels(graph, str(status)).inc()
        self._seconds.labels(graph).observe(seconds)

    def ran(self, graph: str, scope: Scope) -> None:
        """A request's steps have ended, as its trace tells."""
        self._steps.add(graph, scope)

    def streamed(self, graph: str, events: int, first_after_s: float | None) -> None:
        """A stream has ended that had so many events, the first after so many seconds."""
        self._events.labels(graph).inc(events)
        if first_after_s is not None:
            self._first.labels(graph).observe(first_after_s)

    def partial(self, graph: str) -> None:
        """An answer came from a part of the data."""
        self._partial.labels(graph).inc()

    async def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        await self._stages.ask()
        return generate_latest(self._registry)
