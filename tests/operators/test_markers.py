from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import operators.markers
from operators.markers import MarkerFilter, drop_markers


def through(text: str, sources: int = 3) -> str:
    markers = MarkerFilter(sources)
    return markers.feed(text) + markers.flush()


@pytest.mark.parametrize(
    "text",
    [
        "Foo [1]. Bar [1][2]. Baz [2, 3].",
        "中文【1】和［2］，还有[1、3]。",
        "Same again [1] and [1].",
        "A range [1-3] and OpenAI's own 【1†source】.",
        "A [link](http://x), [1](url), a [note], [ ] and [x] boxes, the year [2011].",
        "Index a[0], items[0], user_id[7], v2[9], x[8] and the interval [0, 1].",
        "Code `x [9]` stays, and ``a ` [9]`` too.",
        "```py\na [9]\nb[7] = [8]\n```\nafter",
        "```\nnever closed [9]",
    ],
)
def test_what_names_a_source_or_is_no_marker_passes_untouched(text: str) -> None:
    assert through(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Foo [9] bar.", "Foo bar."),
        ("Foo [9].", "Foo."),
        ("Foo.[9] Bar", "Foo. Bar"),
        ("Foo [c910e2e] bar [0].", "Foo bar."),
        ("[9] Foo [8] [7] bar", "Foo bar"),
        ("Foo [1, 9] bar [4-5]", "Foo [1] bar"),
        ("Foo [9][1] bar", "Foo [1] bar"),
        ("中文【9】。", "中文。"),
        ("A `stray tick [9] here", "A `stray tick here"),
        ("Foo [source 9] bar [Source 2]", "Foo bar [Source 2]"),
        ("Foo [1", "Foo"),
        ("Foo [12, ", "Foo"),
    ],
)
def test_markers_that_name_no_source_are_dropped_with_their_blank(text: str, expected: str) -> None:
    assert through(text) == expected


def test_marks_tell_where_verified_markers_stand_and_invented_are_counted() -> None:
    markers = MarkerFilter(3)
    text = markers.feed("Foo [2, 3] [9]. [c910e2e] Bar [1-2][8, 1]") + markers.flush()
    assert text == "Foo [2, 3]. Bar [1-2][1]"
    assert [(text[m.start : m.end], m.sources) for m in markers.marks] == [
        ("[2, 3]", (2, 3)),
        ("[1-2]", (1, 2)),
        ("[1]", (1,)),
    ]
    assert markers.invented == 3


def test_text_is_not_held_back_longer_than_needed() -> None:
    markers = MarkerFilter(1)
    assert markers.feed("Plain text") == "Plain text"
    assert markers.feed(" [") == ""
    assert markers.feed("1") == ""
    assert markers.feed("]") == ""
    assert markers.feed(" and") == " [1] and"
    assert markers.feed(" [not a marker but a very long remark that goes on and on " + "x" * 60) != ""


def test_drop_markers_leaves_no_number_that_could_mean_another_source() -> None:
    assert drop_markers("Each keeps 4,096 frames [3]. See a[0].") == "Each keeps 4,096 frames. See a[0]."


pieces = st.sampled_from(
    [
        "Foo",
        " ",
        "  ",
        ".",
        "\n",
        "[",
        "]",
        "1",
        "9",
        "[1]",
        " [9]",
        "[c910e2e]",
        "【2】",
        "[0]",
        "[0, 1]",
        "`",
        "```",
        "\n```",
    ]
    + ["(", "[1](u)", "a[0]", ", ", "-", "中", "\t", ">", "~", "x" * 90, "[" + "1, " * 33, "[1, 2]", "`x [9]`"]
)


@given(st.lists(pieces, max_size=30), st.randoms(use_true_random=False))
def test_any_split_gives_the_same_text_and_marks(parts: list[str], random) -> None:
    text = "".join(parts)
    whole, split = MarkerFilter(2), MarkerFilter(2)
    expected = whole.feed(text) + whole.flush()
    got, at = "", 0
    while at < len(text):
        size = random.choice([1, 1, 2, 3, 7, 50])
        got += split.feed(text[at : at + size])
        at += size
    got += split.flush()
    assert got == expected == whole.text
    assert (split.marks, split.invented) == (whole.marks, whole.invented)
    assert all(expected[mark.start] in "[【" and expected[mark.end - 1] in "]】" for mark in split.marks)


def test_the_examples_in_its_documentation_hold() -> None:
    assert doctest.testmod(operators.markers).failed == 0
