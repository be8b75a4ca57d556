"""Pictures of graphs: every step and edge is there, and texts cannot break them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import partial

from engine.graph import graph
from engine.picture import mermaid, svg
from engine.stage import Stage
from engine.step import step


class State:
    async def look(self, n: int) -> dict[str, int]:
        return {"n": n}


@step
def double(n: int) -> int:
    return 2 * n


@partial(step, name='say "<hello>" # loud')
def say(n: int, found: dict[str, int]) -> str:
    return f"{n}{found}"


looking = Stage("looking", State)
look = looking.step(State.look)


@graph
def drawn(n: int) -> str:
    return say(double(n), look(n))


def test_mermaid_has_each_step_and_edge_and_a_box_for_the_stage():
    lines = [line.strip() for line in mermaid(drawn).split("\n")]
    assert lines[0] == "flowchart LR"
    assert 'subgraph s0["looking: 0.25 CPU"]' in lines
    assert 'n3["say #quot;<hello>#quot; #35; loud"]' in lines
    assert {line for line in lines if "-->" in line} == {
        'n0 -->|"int"| n1',
        'n0 -->|"int"| n2',
        'n1 -->|"int"| n3',
        'n2 -->|"dict[str, int]"| n3',
    }


def test_svg_is_xml_with_a_box_for_each_step_none_over_another():
    root = ET.fromstring(svg(drawn))
    names = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"n", "double", "look", "on looking", 'say "<hello>" # loud'} <= set(names)
    boxes = [
        tuple(float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        for box in root.iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert len(boxes) == 4
    for i, (x, y, w, h) in enumerate(boxes):
        for left, top, width, height in boxes[:i]:
            assert x + w <= left or left + width <= x or y + h <= top or top + height <= y
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 4
