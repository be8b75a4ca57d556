from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, NewType

import numpy as np
import pytest

from engine.edges import fits, show, value_fits
from engine.errors import GraphError, GraphTypeError
from engine.graph import graph
from engine.plan import fused_groups, hops
from engine.stage import Stage
from engine.step import step
from engine.stream import Stream
from tests.parts import Shard, Workshop

Id = NewType("Id", int)


@step
def length(text: str) -> int:
    return len(text)


@step
def total(*numbers: int) -> int:
    return sum(numbers)


@step
def shown(number: int, unit: str = "m") -> str:
    return f"{number} {unit}"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (int, int, True),
        (int, str, False),
        (bool, int, True),
        (int, float, True),
        (float, int, False),
        (int, int | None, True),
        (int | None, int, False),
        (list[int], list[int], True),
        (list[int], list[str], False),
        (list[int], list[Any], True),
        (Id, int, True),
        (dict[str, int], dict[str, str], False),
        (Stream[int], AsyncIterator[int], True),
        (Stream[int], AsyncIterator[str], False),
        (Stream[int], int, False),
        (Literal["a"], str, True),
        (str, Literal["a"], False),
        (tuple[int, ...], tuple[int, ...], True),
        (np.ndarray, np.ndarray, True),
        (None, type(None), True),
    ],
)
def test_edges_are_checked_like_this(source, target, expected):
    assert fits(source, target) is expected


def test_constants_are_checked_by_their_class():
    assert value_fits(3, int)
    assert value_fits(3, float)
    assert value_fits(None, int | None)
    assert not value_fits("3", int)
    assert value_fits("a", Literal["a", "b"])
    assert not value_fits("c", Literal["a", "b"])


def test_types_are_shown_as_a_person_writes_them():
    assert show(list[int] | None) == "list[int] | None"
    assert show(Stream[int]) == "Stream[int]"


def test_a_step_outside_a_graph_simply_runs():
    assert length("abc") == 3
    assert shown(2, unit="km") == "2 km"


def test_a_graph_draws_its_steps_and_runs_nothing():
    ran = []

    @step
    def loud(text: str) -> int:
        ran.append(text)
        return 0

    @graph
    def two(text: str) -> int:
        return total(loud(text), length(text), 4)

    assert [n.name for n in two.nodes] == ["loud", "length", "total"]
    assert ran == []


def test_an_edge_of_the_wrong_type_names_step_line_and_both_types():
    with pytest.raises(
        GraphTypeError, match=r"test_graph\.py:\d+: step 'length' takes text: str, but 'total' gives int"
    ):

        @graph
        def wrong(text: str) -> int:
            return length(total(1))  # type: ignore[arg-type]


def test_a_wrong_constant_is_named():
    with pytest.raises(GraphTypeError, match="the constant is 5"):

        @graph
        def wrong(number: int) -> str:
            return shown(number, 5)  # type: ignore[arg-type]


def test_a_wrong_number_of_arguments_is_named():
    with pytest.raises(GraphTypeError, match="missing a required argument: 'text'"):

        @graph
        def wrong(text: str) -> int:
            return length()  # type: ignore[call-arg]


def test_a_promise_that_the_last_step_does_not_keep_is_refused():
    with pytest.raises(GraphTypeError, match="promises str, but 'length' gives int"):

        @graph
        def wrong(text: str) -> str:
            return length(text)  # type: ignore[return-value]


def test_a_step_whose_value_nobody_uses_is_refused():
    with pytest.raises(GraphError, match="never uses the value of step 'shown'"):

        @graph
        def wrong(text: str) -> int:
            n = length(text)
            shown(n)
            return n


def test_a_value_cannot_be_looked_at_while_drawing():
    with pytest.raises(GraphError, match=r"Step\.when"):

        @graph
        def wrong(text: str) -> int:
            n = length(text)
            return n if n else total(n)


def test_values_inside_a_list_are_refused_with_advice():
    @step
    def listed(numbers: list[int]) -> int:
        return sum(numbers)

    with pytest.raises(GraphTypeError, match=r"declare the step with \*args"):

        @graph
        def wrong(text: str) -> int:
            return listed([length(text)])


def test_a_stream_has_one_reader():
    @step
    async def letters(text: str) -> AsyncIterator[str]:
        for letter in text:
            yield letter

    @step
    async def joined(a: Stream[str], b: Stream[str]) -> str:
        return ""

    with pytest.raises(GraphError, match="read by two steps"):

        @graph
        def wrong(text: str) -> str:
            s = letters(text)
            return joined(s, s)


def test_missing_annotations_are_named():
    with pytest.raises(GraphError, match="no annotation for text, return"):

        @step
        def bare(text):  # type: ignore[no-untyped-def]
            return text


def test_a_stage_takes_async_methods_only():
    class Blocking:
        def work(self, n: int) -> int:
            return n

    with pytest.raises(GraphError, match="must never block"):
        Stage("blocking", Blocking).step(Blocking.work)  # type: ignore[arg-type,call-overload]


def test_a_stage_step_outside_a_graph_says_what_to_do():
    with pytest.raises(GraphError, match="start a graph that uses it"):
        Stage("workshop", Workshop).step(Workshop.add)(1, 2)


def two_hops():
    shop = Stage("shop", Workshop)
    shards = Stage("shards", Shard, shards=3)
    add, mine = shop.step(Workshop.add), shards.gather(Shard.mine, lambda parts: sum(parts, []))

    @step
    def first(numbers: list[int]) -> int:
        return numbers[0]

    @graph
    def answer(text: str, offset: int) -> str:
        """Adds what it finds."""
        n = length(text)
        found = first(mine(offset))
        return shown(add(n, found))

    return answer


def test_explain_shows_steps_types_places_and_hops():
    text = two_hops().explain()
    assert "graph answer(text: str, offset: int) -> str" in text
    assert "Adds what it finds." in text
    assert "mine    (offset) -> list[int]    [on shards, every shard]" in text
    assert "add     (length, first) -> int    [on shop]" in text
    assert "hops one after another: 2" in text
    assert "0.25 CPU, 3 shards" in text


def test_dot_draws_stages_as_boxes():
    dot = two_hops().dot()
    assert 'subgraph "cluster_caller"' in dot
    assert '"mine" -> "first" [label="list[int]"];' in dot
    assert '"in:text" -> "length"' in dot


def test_light_steps_joined_by_edges_are_fused():
    @graph
    def chain(text: str) -> str:
        return shown(total(length(text), length(text)))

    assert fused_groups(chain) == [["length", "length_2", "total", "shown"]]
    assert hops(chain) == 0


def test_the_hash_follows_what_the_graph_is():
    assert two_hops().hash == two_hops().hash

    def measured(unit: str):
        @graph
        def measure(text: str) -> str:
            return shown(length(text), unit)

        return measure

    assert measured("m").hash != measured("km").hash
    assert measured("m") == measured("m")
    assert len({measured("m"), measured("m"), measured("km")}) == 2


def test_a_graph_inside_another_is_drawn_there():
    @graph
    def inner(text: str) -> int:
        return length(text)

    @graph
    def outer(text: str) -> str:
        return shown(inner(text))

    assert [n.name for n in outer.nodes] == ["length", "shown"]


def test_a_graph_that_is_not_started_says_what_to_do():
    with pytest.raises(GraphError, match="with run"):
        two_hops()("a", 1)
