from __future__ import annotations

import asyncio
import doctest
import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import operators.cite
from engine.errors import InvalidInput, StreamError
from operators.cite import NO_ANSWER, CiteConfig, cite, no_answer, no_sources
from operators.messages import Answer, Citation, Delta, Event, Finish, Passage, Prompt, Text, Usage


def passage(number: int, title: str, text: str) -> Passage:
    return Passage(
        chunk_id=f"d{number}#0", document_id=f"d{number}", title=title, text=text, start=0, end=len(text), score=1.0
    )


SOURCES = (
    passage(1, "Zephyr", "The Zephyr protocol is content addressed: a frame whose hash was seen is never sent again."),
    passage(2, "Hash table", "The hash table holds 4,096 recent frames."),
    passage(3, "Borealis", "The cluster has 12 nodes and runs Ray 2.60. 光荣公司成立于1978年。"),
)
PROMPT = Prompt(question="How?", messages=(), sources=SOURCES, max_tokens=100, template="answer.v1@abc")


def split(text: str, cuts: Sequence[int]) -> list[str]:
    bounds = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


async def spoken(pieces: Sequence[str], reason: str = "stop") -> AsyncIterator[Delta]:
    for piece in pieces:
        yield Text(piece)
    yield Finish(reason, Usage(7, 5), "model")


async def events(pieces: Sequence[str], prompt: Prompt = PROMPT, reason: str = "stop") -> list[Event]:
    return [event async for event in cite(prompt, spoken(pieces, reason))]


def answer_of(found: list[Event]) -> Answer:
    assert isinstance(found[-1], Answer)
    assert sum(isinstance(event, Answer) for event in found) == 1
    assert "".join(event.text for event in found if isinstance(event, Text)) == found[-1].text
    assert tuple(event for event in found if isinstance(event, Citation)) == found[-1].citations
    return found[-1]


async def answered(text: str, prompt: Prompt = PROMPT, reason: str = "stop") -> Answer:
    return answer_of(await events([text], prompt, reason))


def linked(answer: Answer) -> list[tuple[str, int]]:
    return [(answer.text[c.start : c.end], c.source) for c in answer.citations]


def loose(answer: Answer) -> list[str]:
    return [answer.text[start:end] for start, end in answer.unsupported]


async def test_support_is_the_share_of_content_words_that_the_passage_holds() -> None:
    # zephyr, never, send, frame are held; twice is not: 4 of 5.
    answer = await answered("Zephyr never sends a frame twice [1].")
    assert answer.citations == (Citation(0, 37, 1, "d1#0", "d1", 0.8),)
    assert answer.unsupported == ()


async def test_a_sentence_without_marker_is_linked_to_the_best_passage() -> None:
    assert linked(await answered("The table holds 4096 frames. 公司成立于1978年。")) == [
        ("The table holds 4096 frames.", 2),
        ("公司成立于1978年。", 3),
    ]


async def test_a_marker_that_its_source_does_not_bear_out_is_replaced_by_what_supports() -> None:
    answer = await answered("The hash table holds 4,096 frames [3].")
    assert linked(answer) == [("The hash table holds 4,096 frames [3].", 2)]


async def test_a_sentence_with_a_number_that_no_source_has_is_unsupported() -> None:
    answer = await answered("The cluster has 13 nodes [3].")
    assert (linked(answer), loose(answer)) == ([], ["The cluster has 13 nodes [3]."])


async def test_one_sentence_may_rest_on_several_sources() -> None:
    answer = await answered("Zephyr frames are content addressed [1] and the table holds 4,096 of them [2].")
    assert [c.source for c in answer.citations] == [1, 2]


async def test_made_up_sentences_are_marked_unsupported() -> None:
    answer = await answered("The hash table holds 4,096 frames. Its inventor likes tea.")
    assert loose(answer) == ["Its inventor likes tea."]


@pytest.mark.parametrize("text", ["## Frames", "The steps:", "[1]", "Yes.", "🙂", *NO_ANSWER.values(), ""])
async def test_what_claims_nothing_is_neither_cited_nor_unsupported(text: str) -> None:
    answer = await answered(text)
    assert (answer.text, answer.citations, answer.unsupported) == (text, (), ())


async def test_real_repeated_and_fake_ids_give_citations_for_the_real_only() -> None:
    # SciPhi-AI/R2R#2224 and PR 2287.
    text = (
        "The hash table holds frames [2]. The hash table holds 4,096 frames [2][2]. A frame [c910e2e]. Frames [9] [0]."
    )
    whole = await answered(text)
    streamed = answer_of(await events(list(text)))
    assert whole == streamed
    assert whole.text == "The hash table holds frames [2]. The hash table holds 4,096 frames [2][2]. A frame. Frames."
    assert [(c.source, c.chunk_id, c.document_id) for c in whole.citations[:2]] == [(2, "d2#0", "d2")] * 2
    assert all(c.chunk_id and c.document_id and 0 < c.support <= 1 for c in whole.citations)
    assert whole.invented_markers == 3


async def test_an_invented_marker_never_shows_while_it_streams() -> None:
    found = await events(["Frames ", "[", "9", "]", " are", " here", " [1", "2].", " [", "2]"])
    assert not any("9" in event.text or "12" in event.text for event in found if isinstance(event, Text))
    assert answer_of(found).text == "Frames are here. [2]"


@pytest.mark.parametrize(
    "pieces",
    [
        ["The hash table holds frames. [2]", " The cluster has nodes and runs Ray. [3]"],
        ["The hash table holds frames. The cluster has nodes and runs Ray.", " The hash table", " holds frames."],
        ["- The hash table holds frames.\n- The cluster has nodes and runs Ray.\n"],
    ],
)
async def test_citations_come_right_after_their_sentence(pieces: list[str]) -> None:
    shown, cited = "", 0
    for event in await events(pieces):
        if isinstance(event, Text):
            shown += event.text
        elif isinstance(event, Citation):
            assert 0 <= len(shown) - event.end < 16  # what it takes to be sure that the next sentence has begun
            cited += 1
    assert cited >= 2


async def test_an_answer_cut_by_its_length_still_ends_with_an_answer() -> None:
    # SciPhi-AI/R2R#1970.
    answer = await answered("The hash table holds 4,096 frames [2]. The cluster has [1", reason="length")
    assert answer.text == "The hash table holds 4,096 frames [2]. The cluster has"
    assert (answer.finish_reason, answer.usage, answer.model) == ("length", Usage(7, 5), "model")
    assert (answer.sources, answer.template) == (SOURCES, "answer.v1@abc")


async def test_an_empty_answer_ends_with_an_answer() -> None:
    assert await events([]) == [await answered("")]


async def test_a_model_that_only_says_it_does_not_know_finishes_with_no_answer() -> None:
    assert (await answered(NO_ANSWER["en"])).finish_reason == "no_answer"
    assert (await answered(NO_ANSWER["en"] + " The table holds frames.")).finish_reason == "stop"


async def test_spans_count_code_points() -> None:
    answer = await answered("🙂𝔘 é. The hash table holds frames [2].")
    assert linked(answer) == [("The hash table holds frames [2].", 2)]


async def test_json_passes_untouched_and_is_cited_as_a_whole() -> None:
    prompt = msgspec.structs.replace(PROMPT, answer_schema={"type": "object"})
    text = json.dumps({"answer": ["hash table of 4,096 recent frames"], "ids": [9], "deep": {"more": [[8], "frames"]}})
    found = await events(split(text, [5, 20]), prompt)
    answer = answer_of(found)
    assert answer.text == text
    assert [(c.start, c.end, c.source) for c in answer.citations] == [(0, len(text), 2)]


@pytest.mark.parametrize("text", ['{"a": "hash table [9', '{"a": "invented by Bob [9]"}', "[[9], [8]]"])
async def test_json_that_is_cut_or_made_up_is_unsupported_and_untouched(text: str) -> None:
    prompt = msgspec.structs.replace(PROMPT, answer_schema={"type": "object"})
    answer = await answered(text, prompt, "length")
    assert (answer.text, answer.citations, answer.unsupported) == (text, (), ((0, len(text)),))


@pytest.mark.parametrize(("question", "language"), [("What is it?", "en"), ("这是什么？", "zh")])
async def test_without_sources_the_fixed_answer_is_honest_in_the_questions_language(
    question: str, language: str
) -> None:
    prompt = Prompt(question=question, messages=(), sources=(), max_tokens=5)
    found = [event async for event in cite(prompt, no_sources(prompt))]
    assert found == [
        Text(NO_ANSWER[language]),
        Answer(
            text=NO_ANSWER[language],
            citations=(),
            unsupported=(),
            sources=(),
            finish_reason="no_sources",
            usage=Usage(0, 0),
            model="",
        ),
    ]


def test_a_language_that_has_no_sentence_of_its_own_gets_the_english_one() -> None:
    assert no_answer("这是什么？", "fr") == NO_ANSWER["en"]
    assert no_answer("What?", "zh-CN") == NO_ANSWER["zh"]


async def test_a_generator_without_finish_or_going_on_after_it_is_an_error() -> None:
    async def unfinished() -> AsyncIterator[Delta]:
        yield Text("a")

    async def beyond() -> AsyncIterator[Delta]:
        yield Finish("stop", Usage(0, 0), "")
        yield Text("a")

    for deltas in (unfinished(), beyond()):
        with pytest.raises(StreamError, match="Finish"):
            [event async for event in cite(PROMPT, deltas)]


async def test_closing_closes_the_generator() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[Delta]:
        try:
            while True:
                yield Text("word ")
        finally:
            closed.set()

    stream = cite(PROMPT, endless())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined] # an async generator, declared by what it yields
    assert closed.is_set()


@pytest.mark.parametrize("value", [0, 1.5, -1])
def test_a_threshold_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="min_support"):
        CiteConfig(min_support=value)


words = st.sampled_from(
    ["The hash table holds 4,096 frames", "Zephyr", "the cluster has 12 nodes", "tea", ". ", "。", "\n", "\n\n", " [1]"]
    + [
        "[2]",
        " [9]",
        "[c910e2e]",
        "【3】",
        " ",
        "- ",
        "```\n",
        "`a[0]`",
        "Dr. ",
        "# ",
        ": ",
        "[1, 9]",
        "公司成立于1978年",
        "[",
        "(",
    ]
)


@given(st.lists(words, max_size=25), st.data())
def test_any_split_into_deltas_gives_the_same_answer(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=30))
    whole = answer_of(asyncio.run(events([text])))
    streamed = answer_of(asyncio.run(events(split(text, cuts))))
    assert streamed == whole
    assert answer_of(asyncio.run(events(list(text)))) == whole
    spans = [(c.start, c.end) for c in whole.citations] + list(whole.unsupported)
    assert all(0 <= start < end <= len(whole.text) for start, end in spans)
    assert not {(c.start, c.end) for c in whole.citations} & set(whole.unsupported)


def test_the_examples_in_its_documentation_hold() -> None:
    assert doctest.testmod(operators.cite).failed == 0
