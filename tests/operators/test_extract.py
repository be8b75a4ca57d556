from __future__ import annotations

import asyncio
import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import operators.extract
from engine.errors import InvalidInput
from operators.cite import NO_ANSWER, cite
from operators.extract import ExtractConfig, count_tokens, extract
from operators.messages import Answer, Delta, Finish, Passage, Prompt, Text, Usage

GUIDE = """# Zephyr

Zephyr keeps two copies of a camera stream in step. It was written by the Borealis team in Oslo.

## Install

Zephyr needs Python 3.11 or newer. To install it:

```bash
pip install zephyr
zephyr init
```

## How it works

A frame whose hash was seen is never sent again. Each side keeps a hash table of the 4,096 most
recent frames [3]. Hashes are computed with BLAKE3 because it is fast on small frames.
Version 1.2.0 (released in March 2024) fixed a leak in the reader.
"""
OPTIONS = """## Options

| key | default | meaning |
|---|---|---|
| `port` | 7000 | where the server listens |
| `window` | 4096 | frames kept in the table |

To run behind a proxy, set these variables:

- `ZEPHYR_HOST`: address to bind
- `ZEPHYR_TOKEN`: shared secret
"""
STORY = "光荣公司位于横滨。该公司成立于1978年。《战国无双3》由光荣和ω-force合作开发。"


def passage(document: str, text: str, start: int = 0, title: str = "") -> Passage:
    return Passage(
        chunk_id=f"{document}#{start}",
        document_id=document,
        title=title,
        text=text,
        start=start,
        end=start + len(text),
        score=0.0,
    )


SOURCES = (passage("guide", GUIDE), passage("options", OPTIONS), passage("story", STORY))


async def deltas(question: str, *sources: Passage, max_tokens: int = 500, **config) -> list[Delta]:
    prompt = Prompt(question=question, messages=(), sources=sources or SOURCES, max_tokens=max_tokens)
    return [delta async for delta in extract(prompt, config=ExtractConfig(**config))]


def joined(found: list[Delta]) -> str:
    return "".join(delta.text for delta in found if isinstance(delta, Text))


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("Who wrote Zephyr?", "It was written by the Borealis team in Oslo. [1]"),
        ("How do I install Zephyr?", "To install it:\n\n```bash\npip install zephyr\nzephyr init\n```\n[1]"),
        ("How many recent frames does a hash table keep?", "the 4,096 most recent frames. [1]"),
        ("Why is BLAKE3 used for hashes?", "with BLAKE3 because it is fast on small frames. [1]"),
        ("When was version 1.2.0 released?", "Version 1.2.0 (released in March 2024) fixed a leak in the reader. [1]"),
        ("What is the default port?", "`port` | 7000 | where the server listens [2]"),
        (
            "Which variables must be set for a proxy?",
            "- `ZEPHYR_HOST`: address to bind\n- `ZEPHYR_TOKEN`: shared secret [2]",
        ),
        ("光荣公司是哪年成立的？", "该公司成立于1978年。 [3]"),
        ("《战国无双3》是由哪两个公司合作开发的？", "《战国无双3》由光荣和ω-force合作开发。 [3]"),
    ],
)
async def test_the_answer_holds_the_sentence_that_a_person_would_underline(question: str, sentence: str) -> None:
    assert sentence in joined(await deltas(question))


async def test_the_stream_has_one_delta_a_sentence_and_ends_with_finish() -> None:
    found = await deltas("How many frames does the hash table keep, and why is BLAKE3 used?")
    *texts, finish = found
    assert len(texts) >= 2
    assert all(isinstance(delta, Text) and delta.text.rstrip().endswith("]") for delta in texts)
    assert finish == Finish("stop", Usage(0, sum(count_tokens([joined(found)]))), "extractive")


async def test_sentences_come_in_reading_order_of_documents_as_ranked() -> None:
    late, early = passage("a", "Cats eat fish.", 100), passage("a", "Cats drink milk.", 10)
    text = joined(await deltas("What do cats eat, drink and hunt?", late, passage("b", "Cats hunt mice."), early))
    assert text == "Cats drink milk. [3] Cats eat fish. [1] Cats hunt mice. [2]"


async def test_the_same_thing_is_said_once() -> None:
    said = passage("b", "The cat ate the fish!"), passage("c", "A cat eats a big fish.")
    assert (
        joined(await deltas("What does a cat eat?", passage("a", "The cat eats the fish."), *said)).count("fish") == 1
    )


async def test_overlapping_chunks_give_the_whole_sentence_once() -> None:
    text = "It was late. The cat eats the fish in the garden."
    cut = passage("a", text[:30])
    assert joined(await deltas("Where does the cat eat?", cut, passage("a", text[13:], 13))) == text[13:] + " [2]"


@pytest.mark.parametrize(
    ("question", "sources"),
    [("What colour is the xylophone?", SOURCES), ("What?", SOURCES), ("Who wrote Zephyr?", (passage("e", " \n"),))],
)
async def test_it_says_so_when_nothing_answers(question: str, sources: tuple[Passage, ...]) -> None:
    assert await deltas(question, *sources) == [
        Text(NO_ANSWER["en"]),
        Finish("no_answer", Usage(0, 9), "extractive"),
    ]


async def test_it_says_so_in_chinese() -> None:
    assert joined(await deltas("谁发明了木琴？")) == NO_ANSWER["zh"]


async def test_without_sources_it_does_not_answer() -> None:
    prompt = Prompt(question="Who wrote Zephyr?", messages=(), sources=(), max_tokens=9)
    assert [delta async for delta in extract(prompt)][-1].reason == "no_answer"


async def test_titles_and_headings_count_for_the_sentences_below() -> None:
    sources = passage("a", "It has 12 keys.", title="Harmonium"), passage("b", "It has 88 keys.", title="Piano")
    assert joined(await deltas("How many keys has a piano?", *sources, max_sentences=1)) == "It has 88 keys. [2]"
    text = "# Harmonium\n\nIt has 12 keys.\n\n# Piano\n\nIt has 88 keys.\n"
    assert (
        joined(await deltas("How many keys has a piano?", passage("a", text), max_sentences=1)) == "It has 88 keys. [1]"
    )


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("When did the museum open?", "The museum did open in 1978."),
        ("How many rooms has the museum?", "The museum has 40 rooms."),
        ("Who runs the museum?", "The museum is run by Ada Byron."),
        ("Why does the museum charge?", "The museum must charge because it is poor."),
    ],
)
async def test_a_sentence_that_shows_what_is_asked_for_goes_first(question: str, answer: str) -> None:
    vague = "The museum did open, has rooms, is run and must charge."
    assert joined(await deltas(question, passage("a", vague), passage("b", answer), max_sentences=1)) == answer + " [2]"


async def test_markers_in_a_source_do_not_pass_for_ours() -> None:
    text = joined(await deltas("How many recent frames does a hash table keep?"))
    assert "[3]" not in text


async def test_an_answer_keeps_to_max_tokens_by_whole_sentences() -> None:
    sources = passage("a", "Cats eat fish. Cats drink milk.")
    question = "What do cats eat and drink?"
    assert joined(await deltas(question, sources)) == "Cats eat fish. [1] Cats drink milk. [1]"
    found = await deltas(question, sources, max_tokens=7)
    assert found == [Text("Cats eat fish. [1]"), Finish("length", Usage(0, 4), "extractive")]
    found = await deltas(question, sources, max_tokens=2)
    assert found == [Text("Cats eat"), Finish("length", Usage(0, 2), "extractive")]


async def test_a_schema_is_refused() -> None:
    prompt = Prompt(question="?", messages=(), sources=SOURCES, max_tokens=9, answer_schema={})
    with pytest.raises(InvalidInput, match="schema"):
        await anext(extract(prompt))


async def test_others_run_between_sentences_and_cancelling_stops_it() -> None:
    question = "How many frames does the hash table keep, and why is BLAKE3 used?"
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    working = asyncio.ensure_future(deltas(question))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await deltas(question)
    counting.cancel()
    assert turns >= 5


async def test_every_sentence_of_an_extract_is_cited_where_it_was_found() -> None:
    for question in ("How do I install Zephyr?", "What is the default port?", "光荣公司是哪年成立的？", "Why BLAKE3?"):
        prompt = Prompt(question=question, messages=(), sources=SOURCES, max_tokens=500)
        events = [event async for event in cite(prompt, extract(prompt))]
        answer = events[-1]
        assert isinstance(answer, Answer)
        assert answer.unsupported == ()
        assert answer.citations
        assert all(f"[{c.source}]" in answer.text and c.support == 1.0 for c in answer.citations)
        assert answer.invented_markers == 0


@pytest.mark.parametrize(("field", "value"), [("max_sentences", 0), ("min_coverage", 2.0), ("cue_weight", -0.1)])
def test_a_setting_out_of_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=field):
        ExtractConfig(**{field: value})


@given(st.text(max_size=80), st.lists(st.text(max_size=120), max_size=4), st.integers(1, 30))
def test_any_question_and_sources_give_a_finished_answer_within_its_tokens(
    question: str, texts: list[str], max_tokens: int
) -> None:
    sources = tuple(passage(f"d{n}", text) for n, text in enumerate(texts))
    prompt = Prompt(question=question, messages=(), sources=sources, max_tokens=max_tokens)

    async def run() -> list[Delta]:
        return [delta async for delta in extract(prompt)]

    found = asyncio.run(run())
    assert isinstance(found[-1], Finish)
    if found[-1].reason != "no_answer":
        assert count_tokens([joined(found)])[0] == found[-1].usage.completion_tokens <= max_tokens


def test_the_examples_in_its_documentation_hold() -> None:
    assert doctest.testmod(operators.extract).failed == 0


async def test_a_question_in_the_sources_is_no_answer() -> None:
    text = "When does the mill of Alder close? The mill closes at six in the evening."
    assert "?" not in joined(await deltas("When does the mill of Alder close?", passage("faq", text)))
