"""Chunks: what must hold of every text, and hand-worked cuts."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import msgspec
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidInput
from operators.chunk import PARENT_SIZES, ChunkConfig, chunk_document
from operators.measure import CharacterMeasure, Measure, TokenRuler
from operators.messages import Chunk, ChunkedDocument, Document
from operators.models.embedder import EmbedderConfig, token_measure
from operators.models.token_measure import TokenMeasure

CHARACTERS = CharacterMeasure()
MEDIA_TYPES = ["text/plain", "text/markdown", "text/csv", "text/x-python"]
PIECES = [
    "# Head\n", "\n## Sub\n", "Title\n=====\n", "\n\n", "\n", "- item one\n", "  - nested\n", "1. first\n", "```\n",
    "```py\n", "| a | b |\n", "|---|---|\n", "def f():\n", "    return 1\n", "a,b,c\n", "Words go on. ", "e.g. this, ",
    "The end! ", "Options are:\n", "一二三四五六。", "七八，九十、", "终。", " ", "   ", "\t", "\u3000", "x" * 50,
    "家" * 40, "e\u0301", "\u0301", " \u0301", "👨‍👩‍👧", "🇩🇪🇫🇷", "👍🏽", "क्षि", "각", "\u200b", "\r\n", "\x1c", "---\n",
    "....", "…", "”",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=40).map("".join)


@pytest.fixture(scope="module")
def tokens() -> TokenMeasure:
    return token_measure(EmbedderConfig())


def document(text: str, media_type: str = "text/markdown", title: str = "") -> Document:
    return Document(id="d", title=title, text=text, media_type=media_type)


def cut(text: str, size: int, overlap: int = 0, *, media_type: str = "text/markdown", **more: Any) -> tuple[Chunk, ...]:
    config = ChunkConfig(size=size, overlap=overlap, unit="characters", **more)
    return chunk_document(document(text, media_type), config, CHARACTERS).chunks


def leaves(chunks: tuple[Chunk, ...]) -> list[Chunk]:
    parents = {chunk.parent for chunk in chunks}
    return [chunk for chunk in chunks if chunk.ordinal not in parents]


def check(chunked: ChunkedDocument, config: ChunkConfig, measure: Measure) -> None:
    """Everything that is promised of every text."""
    text, chunks = chunked.document.text, chunked.chunks
    ruler = measure.ruler(text)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    covered = bytearray(len(text))
    ends = {match.end() for match in regex.finditer(r"\X", text)} | {0}
    longest_cluster = max((ruler.length(*match.span()) for match in regex.finditer(r"\X", text)), default=0)
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.text == chunk.text.rstrip()
        assert chunk.text.strip()
        if longest_cluster <= config.size // 2:
            assert chunk.start in ends
            assert chunk.end in ends or text[chunk.end :].isspace()
    assert [chunk.start for chunk in chunks] == sorted(chunk.start for chunk in chunks)
    last = 0
    for chunk in leaves(chunks):
        one_code_point = chunk.end - chunk.start == 1  # may be several tokens, and cannot be cut
        assert ruler.length(chunk.start, chunk.end) <= config.size or one_code_point
        assert chunk.end > last, "each chunk brings something new"
        assert ruler.length(chunk.start, last) <= config.overlap
        last = chunk.end
        covered[chunk.start : chunk.end] = b"\1" * (chunk.end - chunk.start)
    assert all(seen or character.isspace() for seen, character in zip(covered, text, strict=True))
    for chunk in chunks:
        if chunk.parent is not None:
            parent = chunks[chunk.parent]
            assert parent.start <= chunk.start
            assert chunk.end <= parent.end
            assert parent.parent is None
            assert ruler.length(parent.start, parent.end) <= PARENT_SIZES * config.size


def config_of(data: st.DataObject, unit: Literal["tokens", "characters"]) -> ChunkConfig:
    size = data.draw(st.integers(1, 60))
    return ChunkConfig(
        strategy=data.draw(st.sampled_from(["structure", "recursive"])),
        size=size,
        overlap=data.draw(st.integers(0, size - 1)),
        unit=unit,
        parents=data.draw(st.booleans()),
    )


@given(text=texts, media_type=st.sampled_from(MEDIA_TYPES), data=st.data())
@settings(max_examples=300, deadline=None)
def test_chunks_in_characters_hold_what_is_promised(text: str, media_type: str, data: st.DataObject) -> None:
    config = config_of(data, "characters")
    check(chunk_document(document(text, media_type), config, CHARACTERS), config, CHARACTERS)


@given(text=texts, media_type=st.sampled_from(MEDIA_TYPES), data=st.data())
@settings(max_examples=150, deadline=None)
def test_chunks_in_tokens_hold_what_is_promised(
    tokens: TokenMeasure, text: str, media_type: str, data: st.DataObject
) -> None:
    config = config_of(data, "tokens")
    check(chunk_document(document(text, media_type), config, tokens), config, tokens)


@given(text=texts, data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_same_text_gives_the_same_chunks(text: str, data: st.DataObject) -> None:
    config = config_of(data, "characters")
    once, again = (chunk_document(document(text), config, CHARACTERS) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("strategy", ["structure", "recursive"])
@pytest.mark.parametrize("text", ["", "  \n\n\t ", "\u3000\x1c\n"])
def test_a_blank_text_has_no_chunks(text: str, strategy: str) -> None:
    assert cut(text, 10, strategy=strategy) == ()


def test_a_text_that_fits_is_one_chunk_without_outer_white_space() -> None:
    (chunk,) = cut("\n\n  Short. Text.  \n", 20, strategy="recursive")
    assert (chunk.text, chunk.start, chunk.end) == ("Short. Text.", 4, 16)


def test_the_strongest_separator_in_the_second_half_wins() -> None:
    text = "One two three.\n\nFour five. Six seven eight nine."
    chunks = [c.text for c in cut(text, 26, strategy="recursive")]
    assert chunks == ["One two three.", "Four five. Six seven", "eight nine."]  # "Four five." would not be half full


def test_sentences_are_cut_apart_but_not_at_abbreviations() -> None:
    text = "We met, e.g. yesterday at noon. Then it rained a lot. All were wet."
    assert [c.text for c in cut(text, 32, strategy="recursive")] == [
        "We met, e.g. yesterday at noon.",
        "Then it rained a lot.",
        "All were wet.",
    ]


def test_chinese_is_cut_after_full_stops_before_commas_before_words() -> None:
    text = "北京大学创办于一八九八年。初名京师大学堂，是中国第一所国立大学。现址在海淀区。"
    chunks = [c.text for c in cut(text, 20, strategy="recursive")]
    assert chunks == ["北京大学创办于一八九八年。", "初名京师大学堂，是中国第一所国立大学。", "现址在海淀区。"]
    assert [c.text for c in cut("初名京师大学堂，是中国第一所国立大学", 12, strategy="recursive")] == [
        "初名京师大学堂，",
        "是中国第一所国立大学",
    ]


def test_an_overlap_repeats_whole_sentences() -> None:
    text = "Aaaa aaaa aaaa. Bbbb bbbb. Cccc cccc cccc. Dddd dddd dddd."
    chunks = [c.text for c in cut(text, 30, 14, strategy="recursive")]
    assert chunks[:2] == ["Aaaa aaaa aaaa. Bbbb bbbb.", "Bbbb bbbb. Cccc cccc cccc."]


def test_an_overlap_repeats_words_if_no_sentence_fits() -> None:
    chunks = [c.text for c in cut("one two three four five six seven eight", 20, 8, strategy="recursive")]
    assert chunks[0].split()[-1] == chunks[1].split()[0]


def test_a_word_longer_than_the_size_is_cut_between_characters_as_readers_see_them() -> None:
    family = "👨‍👩‍👧"
    chunks = [c.text for c in cut(family * 5, 12, strategy="recursive")]
    assert chunks == [family * 2, family * 2, family]


def test_the_last_chunk_is_not_a_mere_remnant() -> None:
    chunks = cut("word " * 21, 100, strategy="recursive")
    assert [len(c.text.split()) for c in chunks] == [15, 6]


GUIDE = """# Guide

Intro words.

## Install

Run this:

```
pip install it
```

It takes a minute. Coffee helps.

## Use

- first thing
- second thing

| key | value |
|-----|-------|
| a   | 1     |
"""


def test_sections_are_chunks_and_know_the_headings_above_them() -> None:
    chunks = cut(GUIDE, 100)
    assert [(c.context, c.text.splitlines()[0]) for c in chunks] == [
        ("", "# Guide"),
        ("Guide", "## Install"),
        ("Guide", "## Use"),
    ]
    assert chunks[0].text == "# Guide\n\nIntro words."


def test_a_section_that_is_too_long_is_cut_between_blocks_and_a_lead_stays_with_what_it_leads_to() -> None:
    chunks = cut(GUIDE, 60)
    install = [c for c in chunks if "Install" in c.context or c.text.startswith("## Install")]
    assert [c.text for c in install] == [
        "## Install\n\nRun this:\n\n```\npip install it\n```",
        "It takes a minute. Coffee helps.",
    ]
    assert install[1].context == "Guide > Install"


def test_the_title_is_not_repeated_in_the_context() -> None:
    config = ChunkConfig(size=100, overlap=0, unit="characters")
    chunks = chunk_document(document(GUIDE, title="Guide"), config, CHARACTERS).chunks
    assert [c.context for c in chunks] == ["", "", ""]


def test_small_sections_share_a_chunk_unless_the_next_is_of_higher_rank() -> None:
    text = "## A\na.\n\n## B\nb.\n\n### B1\nb1.\n\n# Top\ntop.\n"
    assert [c.text.splitlines()[0] for c in cut(text, 200)] == ["## A", "# Top"]


def test_a_heading_is_never_left_alone() -> None:
    text = "# Top\n\n## Sub\n\n" + "Some words here. " * 10
    first = cut(text, 60)[0].text
    assert first.startswith("# Top\n\n## Sub\n\nSome words here.")


def test_a_long_list_is_cut_between_items_and_keeps_their_indentation() -> None:
    text = "".join(f"- item {i}\n  more of {i}\n  - sub {i}\n" for i in range(6))
    chunks = cut(text, 70)
    assert len(chunks) > 2
    assert all(c.text.lstrip().startswith("- ") for c in chunks)
    assert "".join(c.text + "\n" for c in chunks) == text


def test_a_long_table_is_cut_between_rows_and_its_header_is_the_context() -> None:
    text = "# T\n\n| key | value |\n|-----|-------|\n" + "".join(f"| k{i}  | v{i} |\n" for i in range(12))
    chunks = cut(text, 70)
    assert len(chunks) > 2
    assert all(line.startswith("|") and line.endswith("|") for c in chunks[1:] for line in c.text.splitlines())
    assert {c.context for c in chunks[1:]} == {"T\n| key | value |"}


def test_rows_of_a_csv_file_are_whole_and_know_their_header() -> None:
    text = "name,age\n" + "".join(f"person {i},{i}\n" for i in range(10))
    chunks = cut(text, 50, media_type="text/csv")
    assert [c.context for c in chunks] == ["", *["name,age"] * (len(chunks) - 1)]
    assert "".join(c.text + "\n" for c in chunks) == text


def test_code_is_cut_between_definitions_and_what_continues_one_names_it() -> None:
    small = "import os\n\n\ndef small():\n    return 1\n"
    big = "\n\ndef big(a):\n" + "".join(f"    step_{i}(a)\n" for i in range(10))
    chunks = cut(small + big, 80, media_type="text/x-python")
    assert [c.text.splitlines()[0] for c in chunks] == ["import os", "def big(a):", "    step_4(a)", "    step_8(a)"]
    assert [c.context for c in chunks] == ["", "", "def big(a):", "def big(a):"]


def test_fenced_code_is_whole_while_it_fits_even_with_blank_lines_and_headings_in_it() -> None:
    code = "```sh\n# not a heading\n\n- not a list\n```"
    chunks = cut(f"{'Words here. ' * 6}\n\n{code}\n\nAfter.", 80)
    assert any(code in c.text for c in chunks)
    assert all(c.context == "" for c in chunks)


def test_underlined_lines_are_headings() -> None:
    text = "=====\nTitle\n=====\n\nIntro.\n\nPart\n----\n\n" + "Words of it. " * 8
    chunks = cut(text, 60)
    assert chunks[-1].context == "Title > Part"


def test_front_matter_is_no_heading() -> None:
    chunks = cut("---\ntitle: x\n---\n\n# Real\n\nText.", 200)
    assert [c.text for c in chunks] == ["---\ntitle: x\n---\n\n# Real\n\nText."]


def test_parents_hold_their_children_and_stay_in_their_section() -> None:
    text = "# A\n\n" + "Alpha beta gamma. " * 12 + "\n\n# B\n\nShort.\n\n# C\n\n" + "Delta epsilon. " * 12
    chunks = cut(text, 60, 0, parents=True)
    assert [c.parent for c in chunks] == [None, 0, 0, 0, 0, None, None, 6, 6, 6, 6]
    assert [chunks[i].text.splitlines()[0] for i in (0, 5, 6)] == ["# A", "# B", "# C"]
    assert chunks[0].end == chunks[4].end < chunks[5].start


def test_a_chunk_knows_its_tokens_as_its_measure_counts_them(tokens: TokenMeasure) -> None:
    config = ChunkConfig(size=6, overlap=0, parents=True)
    chunks = chunk_document(document("One two three. Four five six.\n\nSeven eight."), config, tokens).chunks
    assert [(chunk.text, chunk.tokens) for chunk in chunks] == [
        ("One two three. Four five six.\n\nSeven eight.", 11),
        ("One two three.", 4),
        ("Four five six.", 4),
        ("Seven eight.", 3),
    ]


def test_tokens_of_chunks_in_characters_are_counted_if_there_is_something_to_count_with(tokens: TokenMeasure) -> None:
    config = ChunkConfig(size=14, overlap=0, unit="characters")
    text = document("One two three. 北京大学。")
    assert [chunk.tokens for chunk in chunk_document(text, config, CHARACTERS).chunks] == [0, 0]
    assert [chunk.tokens for chunk in chunk_document(text, config, CHARACTERS, tokens=tokens).chunks] == [4, 5]


def test_one_long_line_is_cut_in_linear_time(tokens: TokenMeasure) -> None:
    # 400 KB without a single separator, and 400 KB of white space: once quadratic, this would take minutes.
    for text in ("x" * 400_000, "a" + " " * 400_000 + "b", "家" * 100_000, "e" + "\u0301" * 100_000):
        config = ChunkConfig(strategy="structure")
        chunks = chunk_document(document(text), config, tokens).chunks
        assert max(c.end - c.start for c in chunks) <= 32 * config.size


def test_a_unit_that_the_measure_does_not_count_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'tokens'"):
        chunk_document(document("x"), ChunkConfig(), CHARACTERS)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"size": 0}, "chunk.size is 0"),
        ({"size": 50, "overlap": 50}, "chunk.overlap is 50 and chunk.size 50"),
        ({"overlap": -1}, "chunk.overlap is -1"),
        ({"strategy": "magic"}, "chunk.strategy is 'magic'"),
        ({"unit": "bytes"}, "chunk.unit is 'bytes'"),
    ],
)
def test_a_wrong_setting_is_refused_and_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        ChunkConfig(**values)


def test_chunks_and_configuration_cross_a_wire() -> None:
    chunked = chunk_document(document("# A\n\nText."), ChunkConfig(unit="characters"), CHARACTERS)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(chunked), type=ChunkedDocument) == chunked
    assert pickle.loads(pickle.dumps(ChunkConfig(size=90))) == ChunkConfig(size=90)


def test_token_lengths_are_worked_by_hand() -> None:
    ruler = TokenRuler([[0, 3], [4, 6], [6, 9]], 10)  # "the embed" as the | em | bed
    assert [ruler.length(0, 3), ruler.length(0, 10), ruler.length(3, 4), ruler.length(5, 6)] == [1, 3, 0, 1]
    assert [ruler.reach(0, 1), ruler.reach(0, 2), ruler.reach(0, 3), ruler.reach(5, 1)] == [4, 6, 10, 6]
    assert [ruler.back(10, 1), ruler.back(10, 2), ruler.back(10, 3)] == [6, 3, 0]


def test_long_words_and_gaps_count_as_several_tokens() -> None:
    assert TokenRuler([[0, 100]], 100).length(0, 100) == 4  # 32 code points each
    assert TokenRuler([[0, 1], [71, 72]], 72).length(0, 72) == 5
    assert TokenRuler([], 33).length(0, 33) == 2


@given(text=texts, start=st.integers(0, 60), units=st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_reach_and_back_are_the_furthest_that_fit(tokens: TokenMeasure, text: str, start: int, units: int) -> None:
    ruler = tokens.ruler(text)
    start = min(start, len(text))
    end = ruler.reach(start, units)
    assert ruler.length(start, end) <= units
    assert end == len(text) or ruler.length(start, end + 1) > units
    begin = ruler.back(start, units)
    assert ruler.length(begin, start) <= units
    assert begin == 0 or ruler.length(begin - 1, start) > units


def test_slices_of_a_long_text_give_the_tokens_of_the_whole(tokens: TokenMeasure) -> None:
    text = "Some words, and more of them; 北京 too.\n" * 1700  # some slices
    whole = tokens._tokenizer.encode(text, add_special_tokens=False).offsets
    assert [tuple(pair) for pair in tokens.offsets(text).tolist()] == whole


def test_an_overlap_of_nearly_the_whole_size_still_brings_something_new(tokens: TokenMeasure) -> None:
    # Found by hypothesis: a cut before a line's end, then one after it, and nothing but the line's end between them.
    head, family = "# Head\n", "👨‍👩‍👧"
    text = f"{head}| a | b |\n\u03010000{'家' * 40}{family}{head}\u0301|---|---|\n{family}{head * 4}```py\n0"
    config = ChunkConfig(strategy="recursive", size=60, overlap=58)
    check(chunk_document(document(text), config, tokens), config, tokens)
