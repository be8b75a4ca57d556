"""Histograms of what steps took, filled from the traces of requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.graph import Graph
from engine.scope import Scope
from engine.trace import SKIPPED, Span

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_FAMILIES = {
    "queued": ("headrace_step_queued_seconds", "Time of a step's calls in queues on their stage."),
    "served": ("headrace_step_served_seconds", "A step's own time."),
    "hop": ("headrace_step_hop_seconds", "What is left of a call: encoding, transport, scheduling."),
    "batch": ("headrace_step_batch_items", "Items of the largest batch that a call ran in."),
}


class _Histogram:
    """One figure's distribution; a request adds some dozens of figures, so one must cost no more than a bisection.

    (One of prometheus_client's own took 4 to 8 us here, under load, against 0.5 us.)
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        if not any(self._counts):
            return
        bounds = [*map(str, self._bounds), "+Inf"]
        cumulative: list[tuple[str, float]] = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(labels, cumulative, self._sum)


class _Step:
    """The distributions of one step's figures. A light step has neither a queue nor a hop."""

    __slots__ = ("_heavy", "batch", "hop", "partial", "queued", "served")

    def __init__(self, *, heavy: bool) -> None:
        self._heavy = heavy
        self.queued, self.served, self.hop = _Histogram(_SECONDS), _Histogram(_SECONDS), _Histogram(_SECONDS)
        self.batch = _Histogram(_ITEMS)
        self.partial = 0

    def add(self, span: Span) -> None:
        self.served.observe(span.served_s)
        if self._heavy:
            self.queued.observe(span.queued_s)
            self.hop.observe(span.hop_s)
            if span.batch:
                self.batch.observe(span.batch)


class Steps(Collector):
    """What the steps of graphs took, and how often they did without a shard; a step that was skipped took nothing.

    Args:
        graphs: Those whose requests will be added.
    """

    def __init__(self, graphs: Sequence[Graph[..., Any]]) -> None:
        self._steps = {
            graph.name: {node.name: _Step(heavy=node.step.stage is not None) for node in graph.nodes}
            for graph in graphs
        }

    def add(self, graph: str, scope: Scope) -> None:
        """A request has ended: count what its trace says."""
        for span in () if scope.trace is None else scope.trace.spans:
            if span.note != SKIPPED:
                self._step(graph, span.step).add(span)
        for loss in scope.losses:
            self._step(graph, loss.step).partial += 1

    def _step(self, graph: str, name: str) -> _Step:
        """The step; a name that the graph does not have is of a graph that one of its steps has run."""
        steps = self._steps[graph]
        if (step := steps.get(name)) is None:
            step = steps[name] = _Step(heavy=True)
        return step

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        for part, (name, text) in _FAMILIES.items():
            family = HistogramMetricFamily(name, text, labels=["graph", "step"])
            for labels, step in self._all():
                getattr(step, part).add_to(family, labels)
            yield family
        partial = CounterMetricFamily("headrace_step_partial", "Calls without some shards.", labels=["graph", "step"])
        for labels, step in self._all():
            if step.partial:
                partial.add_metric(labels, step.partial)
        yield partial

    def _all(self) -> Iterator[tuple[tuple[str, str], _Step]]:
        for graph, steps in self._steps.items():
            for name, step in steps.items():
                yield (graph, name), step
