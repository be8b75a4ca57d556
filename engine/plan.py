"""A graph compiled to arrays: what a run looks up instead of working it out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.graph import Edge, Graph, Node
from engine.step import Kind


@dataclass(frozen=True, slots=True)
class Op:
    """One step, ready to run: where its inputs lie among the values, and who waits for it."""

    index: int
    name: str
    node: Node
    kind: Kind
    heavy: bool
    sources: tuple[int | None, ...]  # for each positional argument: index of a value, or None for a constant
    constants: tuple[Any, ...]  # the constant there
    keywords: tuple[tuple[str, int | None, Any], ...]
    consumers: tuple[int, ...]  # steps that wait for this one, heavy ones first, so that they start first
    waits_for: int
    plain: bool  # no argument is a constant

    def arguments(self, values: list[Any]) -> list[Any]:
        """The positional arguments, out of `values`."""
        if self.plain:
            return [values[s] for s in self.sources]  # type: ignore[index] # plain: no source is None
        return [c if s is None else values[s] for s, c in zip(self.sources, self.constants, strict=True)]

    def keyword_arguments(self, values: list[Any]) -> dict[str, Any]:
        """The keyword arguments, out of `values`."""
        return {name: c if s is None else values[s] for name, s, c in self.keywords}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A graph as arrays; indices count the graph's inputs first, then its steps."""

    inputs: int
    ops: tuple[Op, ...]
    first: tuple[int, ...]  # steps that need nothing but inputs
    output: int
    forks: bool  # whether two steps may ever run at once
    waiting: tuple[int, ...]  # for each index, how many values it waits for


def _split(value: Any) -> tuple[int | None, Any]:
    return (value.node, None) if isinstance(value, Edge) else (None, value)


def compile_graph(graph: Graph[Any, Any]) -> Compiled:
    """The arrays of `graph`."""
    inputs = len(graph.inputs)
    by_index = {n.index: n for n in graph.nodes}
    needs = {n.index: {s for s in n.sources if s >= inputs} for n in graph.nodes}
    consumers: dict[int, list[int]] = {i: [] for i in by_index}
    for index, sources in needs.items():
        for source in sources:
            consumers[source].append(index)

    def heavy_first(index: int) -> tuple[bool, int]:
        return by_index[index].step.placement is None, index

    ops = tuple(_op(n, sorted(consumers[n.index], key=heavy_first), len(needs[n.index])) for n in graph.nodes)
    first = tuple(sorted((n.index for n in graph.nodes if not needs[n.index]), key=heavy_first))
    waiting = (0,) * inputs + tuple(op.waits_for for op in ops)
    forks = len(first) > 1 or any(len(op.consumers) > 1 for op in ops)
    return Compiled(inputs, ops, first, graph.output, forks, waiting)


def _op(node: Node, consumers: list[int], waits_for: int) -> Op:
    split = [_split(a) for a in node.args]
    return Op(
        index=node.index,
        name=node.name,
        node=node,
        kind=node.step.kind,
        heavy=node.step.placement is not None,
        sources=tuple(s for s, _ in split),
        constants=tuple(c for _, c in split),
        keywords=tuple((k, *_split(v)) for k, v in node.kwargs.items()),
        consumers=tuple(consumers),
        waits_for=waits_for,
        plain=all(s is not None for s, _ in split),
    )


def fused_groups(graph: Graph[Any, Any]) -> list[list[str]]:
    """The light steps that run one after another in the caller without a hop between them.

    Two light steps are in one group when an edge joins them; the first group is the one that starts the graph.
    """
    group_of: dict[int, int] = {}
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.step.placement is not None:
            continue
        joined = sorted({group_of[s] for s in node.sources if s in group_of})
        target = joined[0] if joined else node.index
        members = groups.setdefault(target, [])
        for other in joined[1:]:
            members += groups.pop(other)
        members.append(node)
        for member in members:
            group_of[member.index] = target
    return [[n.name for n in sorted(g, key=lambda n: n.index)] for _, g in sorted(groups.items())]


def hops(graph: Graph[Any, Any]) -> int:
    """The most calls to stages that follow one another on a way through the graph: what latency pays for."""
    depth: dict[int, int] = {}
    for node in graph.nodes:
        before = max((depth.get(s, 0) for s in node.sources), default=0)
        depth[node.index] = before + (node.step.placement is not None)
    return depth.get(graph.output, 0)
