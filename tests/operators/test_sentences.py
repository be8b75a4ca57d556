from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import operators.sentences
from operators.sentences import Kind, settled_sentences, split_sentences


def cut(text: str) -> list[str]:
    return [text[s.start : s.end] for s in split_sentences(text)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Li met Mr. Smith.", "They spoke."],
        ["J. R. R. Tolkien wrote it.", "Then he slept."],
        ["It costs 3.5 yuan.", "Version 1.2.0 is out."],
        ["He lives in the U.S.", "The house is old."],
        ["The U.S. Army is large."],
        ["See Fig. 2 and No. 5.", "The answer is no.", "Next."],
        ["We use Node.js, e.g. here, etc. and more."],
        ["Really?", "Yes!", "Fine..."],
        ['He said "stop."', "Then he left."],
        ["Run `a. B` first.", "Then wait."],
        ["Foo is old. [1]", "Bar is new [2].", "Baz.[1][3]", "End"],
        ["Read [1](http://x.y).", "Then go."],
    ],
)
def test_english_sentences_end_where_a_reader_ends_them(sentences: list[str]) -> None:
    assert cut(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["他来了。", "为什么？", "没人知道！"],
        ["“再见。”", "她说。"],
        ["他说：“你好！”，然后走了。", "完。"],
        ["《你好！世界》是一本书。", "它很厚。"],
        ["圆周率是3.14。", "版本1.2已发布【1】。", "好。【2】"],
        ["请见系列1.由于故不得不改。"],
    ],
)
def test_chinese_sentences_end_without_blanks(sentences: list[str]) -> None:
    assert cut("".join(sentences)) == sentences


def test_blocks_are_told_apart() -> None:
    text = (
        "# Title\nIntro:\n\n1. First. More.\n2. Second\n- sub\n\n```sh\nx. Y\n\nz\n```\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n> Quoted.\n---\n"
    )
    assert [(s.kind, text[s.start : s.end]) for s in split_sentences(text)] == [
        (Kind.HEADING, "Title"),
        (Kind.PROSE, "Intro:"),
        (Kind.ITEM, "First."),
        (Kind.ITEM, "More."),
        (Kind.ITEM, "Second"),
        (Kind.ITEM, "sub"),
        (Kind.CODE, "```sh\nx. Y\n\nz\n```"),
        (Kind.ROW, "a | b"),
        (Kind.ROW, "1 | 2"),
        (Kind.PROSE, "Quoted."),
    ]


def test_lines_broken_to_fit_a_page_are_joined_and_short_lines_are_not() -> None:
    wrapped = "This line was broken by an editor at sixty columns so that\nIt goes on here."
    assert cut(wrapped) == [wrapped]
    assert cut("Name: Zephyr\nPort: 7000") == ["Name: Zephyr", "Port: 7000"]


def test_a_line_of_markers_belongs_to_what_stands_above() -> None:
    assert cut("```\nx\n```\n[1]\n\nNext.") == ["```\nx\n```\n[1]", "Next."]


def test_no_text_has_no_sentences() -> None:
    assert split_sentences("") == split_sentences(" \n\n---\n ") == []


fragments = st.lists(
    st.sampled_from(
        [
            "Foo",
            "bar",
            "Dr",
            "U.S",
            "1",
            "12",
            ".",
            "。",
            "?",
            " ",
            "\n",
            "\n\n",
            "[1]",
            "[2, 3]",
            "- ",
            "# ",
            "|",
            "```",
        ]
        + [
            "`",
            "《",
            "》",
            "“",
            "”",
            "中文",
            "etc",
            "The",
            "3.5",
            "1. ",
            "---",
            "[",
            "]",
            "(",
            "~~~",
            "a long enough line " * 3,
        ]
    ),
    max_size=40,
).map("".join)


@given(fragments)
def test_sentences_are_ordered_trimmed_and_leave_only_signs_between(text: str) -> None:
    at = 0
    for sentence in split_sentences(text):
        assert at <= sentence.start < sentence.end <= len(text)
        assert text[sentence.start : sentence.end] == text[sentence.start : sentence.end].strip()
        at = sentence.end


@given(fragments, st.data())
def test_what_is_settled_stays_whatever_follows(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    settled = settled_sentences(text[:at])
    assert split_sentences(text)[: len(settled)] == settled


def test_the_examples_in_its_documentation_hold() -> None:
    assert doctest.testmod(operators.sentences).failed == 0
