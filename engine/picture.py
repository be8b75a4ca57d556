"""A graph as a picture that browsers and documents show: Mermaid and SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, NamedTuple

from engine.edges import show
from engine.graph import Edge, Graph, Node

_CHARACTER, _LINE, _BETWEEN_X, _BETWEEN_Y, _MARGIN = 7, 18, 50, 16, 16  # pixels; text is 12 pixels high
_COLOURS = ("#e3f2fd", "#fff3e0", "#e8f5e9", "#f3e5f5", "#fce4ec", "#e0f7fa", "#fffde7", "#efebe9")


class _Box(NamedTuple):
    lines: tuple[str, ...]
    colour: str


class _Place(NamedTuple):
    left: float
    top: float
    width: float
    height: float


def mermaid(graph: Graph[Any, Any]) -> str:
    """Mermaid source: inputs, steps, a box for each stage; thick arrows are streams."""
    lines = ["flowchart LR"]
    lines += [f'  n{i}(["{_quoted(f"{p.name}: {show(p.annotation)}")}"])' for i, p in enumerate(graph.inputs)]
    lines += [f'  n{n.index}["{_quoted(n.name)}"]' for n in graph.nodes if n.step.stage is None]
    for number, stage in enumerate(graph.stages):
        lines.append(f'  subgraph s{number}["{_quoted(f"{stage.name}: {stage.describe()}")}"]')
        lines += [f'    n{n.index}["{_quoted(n.name)}"]' for n in graph.nodes if n.step.stage is stage]
        lines.append("  end")
    for source, target, kind in _edges(graph):
        arrow = "==>" if kind.startswith("Stream[") else "-->"
        lines.append(f'  n{source} {arrow}|"{_quoted(kind)}"| n{target}')
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;")


def _edges(graph: Graph[Any, Any]) -> Iterator[tuple[int, int, str]]:
    for node in graph.nodes:
        for value in (*node.args, *node.kwargs.values()):
            if isinstance(value, Edge):
                yield value.node, node.index, show(value.kind)


def svg(graph: Graph[Any, Any]) -> str:
    """An SVG picture, from left to right in the order in which steps can run; a colour is a stage, bold is a stream."""
    boxes = _boxes(graph)
    places = _laid_out(graph, boxes)
    width = max(p.left + p.width for p in places.values()) + _MARGIN
    height = max(p.top + p.height for p in places.values()) + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="sans-serif" font-size="12" role="img" aria-label="graph {graph.name}">',
        f"<title>{escape(f'graph {graph.name}')}</title>",
    ]
    lines += [_arrow(places[a], places[b], kind) for a, b, kind in _edges(graph)]
    lines += [text for index, place in places.items() for text in _drawn(boxes[index], place)]
    return "\n".join([*lines, "</svg>"])


def _boxes(graph: Graph[Any, Any]) -> dict[int, _Box]:
    colours = {stage: _COLOURS[i % len(_COLOURS)] for i, stage in enumerate(graph.stages)}
    boxes = {i: _Box((p.name, show(p.annotation)), "#eeeeee") for i, p in enumerate(graph.inputs)}
    for node in graph.nodes:
        stage = node.step.stage
        boxes[node.index] = _Box((node.name,), "white") if stage is None else _Box(_of_stage(node), colours[stage])
    return boxes


def _of_stage(node: Node) -> tuple[str, ...]:
    return node.name, f"on {node.step.stage.name}" if node.step.stage else ""


def _laid_out(graph: Graph[Any, Any], boxes: Mapping[int, _Box]) -> dict[int, _Place]:
    """Columns by the longest way from an input, each centred."""
    column = dict.fromkeys(range(len(graph.inputs)), 0)
    for node in graph.nodes:
        column[node.index] = 1 + max((column[s] for s in node.sources), default=0)
    places, left = {}, float(_MARGIN)
    columns = [[i for i in column if column[i] == c] for c in range(max(column.values()) + 1)]
    heights = {i: _LINE * len(box.lines) + 10.0 for i, box in boxes.items()}
    tallest = max(sum(heights[i] + _BETWEEN_Y for i in members) for members in columns)
    for members in columns:
        width = max((_CHARACTER * len(line) + 16.0 for i in members for line in boxes[i].lines), default=0.0)
        top = _MARGIN + (tallest - sum(heights[i] + _BETWEEN_Y for i in members)) / 2
        for index in members:
            places[index] = _Place(left, top, width, heights[index])
            top += heights[index] + _BETWEEN_Y
        left += width + _BETWEEN_X
    return places


def _arrow(a: _Place, b: _Place, kind: str) -> str:
    x0, y0, x1, y1 = a.left + a.width, a.top + a.height / 2, b.left, b.top + b.height / 2
    middle = (x0 + x1) / 2
    stroke = 3 if kind.startswith("Stream[") else 1
    path = f"M{x0:.0f},{y0:.0f} C{middle:.0f},{y0:.0f} {middle:.0f},{y1:.0f} {x1:.0f},{y1:.0f}"
    return f'<path d="{path}" fill="none" stroke="#607d8b" stroke-width="{stroke}"><title>{escape(kind)}</title></path>'


def _drawn(box: _Box, place: _Place) -> Iterator[str]:
    yield (
        f'<rect x="{place.left:.0f}" y="{place.top:.0f}" width="{place.width:.0f}" height="{place.height:.0f}" '
        f'rx="6" fill="{box.colour}" stroke="#455a64"/>'
    )
    for number, line in enumerate(box.lines, start=1):
        y = place.top + _LINE * number - 1
        yield f'<text x="{place.left + place.width / 2:.0f}" y="{y:.0f}" text-anchor="middle">{escape(line)}</text>'
