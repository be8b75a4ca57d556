"""A graph in words and as a picture, before anything runs."""

from __future__ import annotations

from typing import Any

from engine.edges import show
from engine.graph import Edge, Graph, Node
from engine.plan import fused_groups, hops


def explain(graph: Graph[Any, Any]) -> str:
    """Steps with types, inputs and places; fused groups; hops; stages with their resources."""
    inputs = ", ".join(f"{p.name}: {show(p.annotation)}" for p in graph.inputs)
    lines = [f"graph {graph.name}({inputs}) -> {show(graph.result)}    hash {graph.hash}"]
    if graph.doc:
        lines.append(f"  {graph.doc.splitlines()[0]}")
    width = max(len(n.name) for n in graph.nodes)
    lines += ["", "steps", *(_step_line(graph, n, width) for n in graph.nodes), "", "fused into the caller"]
    lines += [f"  {' -> '.join(group)}" for group in fused_groups(graph)] or ["  nothing"]
    lines += ["", f"hops one after another: {hops(graph)}"]
    if graph.stages:
        lines += ["", "stages"]
        name_width = max(len(s.name) for s in graph.stages)
        lines += [f"  {s.name:<{name_width}}  {s.describe()}" for s in graph.stages]
    lines += [f"\nnote: {note}" for note in graph.notes]
    return "\n".join(lines)


def _step_line(graph: Graph[Any, Any], node: Node, width: int) -> str:
    stage = node.step.stage
    where = f"on {stage.name}" if stage else "light"
    if node.step.placement is not None and node.step.placement.merge is not None:
        where += ", every shard"
    if node.step.placement is not None and (policy := node.step.placement.policy.describe()):
        where += f", {policy}"
    if node.step.condition is not None:
        where += f", when {_words(node.step.condition.when)}"
    return f"  {node.name:<{width}}  ({', '.join(_inputs(graph, node))}) -> {show(node.step.result)}    [{where}]"


def _words(predicate: Any) -> str:
    return str(getattr(predicate, "__name__", None) or repr(predicate)).replace("_", " ")


def _inputs(graph: Graph[Any, Any], node: Node) -> list[str]:
    return [a.source if isinstance(a, Edge) else repr(a) for a in (*node.args, *node.kwargs.values())]


def dot(graph: Graph[Any, Any]) -> str:
    """Graphviz source: light steps in the caller's box, each stage in a box of its own, streams as bold edges."""
    lines = [f'digraph "{graph.name}" {{', "  rankdir=LR; node [shape=box, style=rounded, fontname=Helvetica];"]
    lines += [f'  "in:{p.name}" [label="{p.name}: {show(p.annotation)}", shape=plaintext];' for p in graph.inputs]
    light = [n for n in graph.nodes if n.step.stage is None]
    lines += _cluster("caller", "caller", light)
    for i, stage in enumerate(graph.stages):
        members = [n for n in graph.nodes if n.step.stage is stage]
        lines += _cluster(f"stage{i}", f"{stage.name} ({stage.describe()})", members)
    for node in graph.nodes:
        edges = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, Edge)]
        lines += [_arrow(e, node.name, is_input=e.node < len(graph.inputs)) for e in edges]
    end = next(n for n in graph.nodes if n.index == graph.output)
    lines += ['  "out" [label="answer", shape=plaintext];', f'  "{end.name}" -> "out" [label="{show(graph.result)}"];']
    return "\n".join([*lines, "}"])


def _cluster(key: str, label: str, nodes: list[Node]) -> list[str]:
    if not nodes:
        return []
    inside = " ".join(f'"{n.name}";' for n in nodes)
    return [f'  subgraph "cluster_{key}" {{ label="{label}"; {inside} }}']


def _arrow(edge: Edge, target: str, *, is_input: bool) -> str:
    kind = show(edge.kind)
    style = ", style=bold" if kind.startswith("Stream[") else ""
    source = f"in:{edge.source}" if is_input else edge.source
    return f'  "{source}" -> "{target}" [label="{kind}"{style}];'
