from __future__ import annotations

import doctest
import hashlib
import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import operators.prompt
from engine.errors import InvalidInput
from operators.messages import ChatMessage, Passage, Plan, Prompt, Results
from operators.prompt import PromptConfig, Template, build_prompt, load_template, prompt_texts

TEMPLATE = Template(name="t", hash="0", system="Be brief.", user="{context}\n\nQ: {query}")
CONFIG = PromptConfig(context_window=1000, message_overhead=0, template=TEMPLATE)


def words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def plan(question: str = "Why so?", **fields) -> Plan:
    return Plan(
        question=question,
        strategy="hybrid",
        legs=(),
        rerank_candidates=0,
        language="en",
        **{"limit": 10, "max_answer_tokens": 100} | fields,
    )


def passage(name: str, text: str, title: str = "Title") -> Passage:
    return Passage(chunk_id=name, document_id="doc", title=title, text=text, start=0, end=len(text), score=0.0)


def built(texts: list[str], config: PromptConfig = CONFIG, count=words, **fields) -> Prompt:
    passages = tuple(passage(f"doc#{n}", text) for n, text in enumerate(texts))
    return counted(plan(**fields), passages, config, count)


def counted(asked: Plan, passages: tuple[Passage, ...], config: PromptConfig = CONFIG, count=words) -> Prompt:
    found = Results(asked, passages)
    return build_prompt(asked, found, count(prompt_texts(asked, found, config=config)), config=config)


def test_sources_are_numbered_in_order_with_their_titles() -> None:
    prompt = built(["one", "two"])
    assert prompt.messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "[1] Title\none\n\n[2] Title\ntwo\n\nQ: Why so?"),
    )
    assert [source.text for source in prompt.sources] == ["one", "two"]
    assert (prompt.question, prompt.max_tokens, prompt.template) == ("Why so?", 100, "t@0")
    assert prompt.prompt_tokens == 13  # a source is taken to be one token longer than it is alone


def test_a_passage_that_does_not_fit_is_skipped_and_the_next_tried() -> None:
    # Window 121: 100 for the answer, 5 for instructions and question, 16 left; "[n] Title" and the joint take 3.
    config = msgspec.structs.replace(CONFIG, context_window=121)
    prompt = built(["a " * 7, "b " * 6, "c " * 3], config)
    assert [source.chunk_id for source in prompt.sources] == ["doc#0", "doc#2"]
    assert "[2] Title\nc" in prompt.messages[1].content
    assert prompt.prompt_tokens == 5 + 10 + 6 <= 21


def test_the_message_overhead_is_left_free() -> None:
    tight = msgspec.structs.replace(CONFIG, context_window=109)
    assert len(built(["one"], tight).sources) == 1
    assert len(built(["one"], msgspec.structs.replace(tight, message_overhead=1)).sources) == 0


def test_lengths_of_other_texts_are_refused() -> None:
    asked = plan()
    with pytest.raises(ValueError, match="1 lengths for 2 texts"):
        build_prompt(asked, Results(asked, ()), [3], config=CONFIG)


def test_the_same_chunk_or_text_is_given_once() -> None:
    passages = (passage("a", "same"), passage("b", "same"), passage("a", "again"), passage("c", "other"))
    prompt = counted(plan(), passages)
    assert [source.chunk_id for source in prompt.sources] == ["a", "c"]


def test_no_more_sources_than_the_plan_allows() -> None:
    assert len(built(["one", "two", "three"], limit=2).sources) == 2


def test_without_passages_there_are_no_sources() -> None:
    assert built([]).sources == ()


def test_placeholders_in_passages_and_question_mean_themselves() -> None:
    prompt = built(["{query} {context} {other}"], question="{context}?")
    assert prompt.messages[1].content == "[1] Title\n{query} {context} {other}\n\nQ: {context}?"


@given(st.text(), st.text())
def test_passage_and_question_appear_as_they_are(text: str, question: str) -> None:
    content = built([text], question=question, count=lambda texts: [1] * len(texts)).messages[1].content
    assert content == f"[1] Title\n{text}\n\nQ: {question}"


def test_a_title_is_one_line_and_the_document_id_stands_in_for_none() -> None:
    passages = (passage("a", "x", "Two\nlines"), passage("b", "y", " "))
    content = counted(plan(), passages).messages[1].content
    assert content.startswith("[1] Two lines\nx\n\n[2] doc\ny")


def test_a_schema_takes_its_own_template_and_is_shown() -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}}
    prompt = built(["one"], PromptConfig(), answer_schema=schema)
    assert prompt.answer_schema == schema
    assert '{"type":"object","properties":{"year":{"type":"integer"}}}' in prompt.messages[0].content
    assert prompt.template.startswith("answer_json.v1@")


def test_a_question_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidInput, match="22 tokens.*context_window 110 only 10.*max_answer_tokens 100"):
        built([], msgspec.structs.replace(CONFIG, context_window=110), question="why " * 19)


@pytest.mark.parametrize("name", ["answer.v1", "answer_json.v1"])
def test_packaged_templates_have_both_parts_and_the_hash_of_their_file(name: str) -> None:
    template = load_template(name)
    file = Path(__file__).parents[2] / "operators" / "prompts" / f"{name}.txt"
    assert template.hash == hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    assert template.name == name
    assert template.system
    assert "{query}" in template.user


def test_a_file_without_parts_is_the_user_message(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("Context:\n{context}\n\nQuestion: {query}\n\nAnswer:", encoding="utf-8")
    template = load_template(str(file))
    assert (template.name, template.system, template.user[-7:]) == ("mine", "", "Answer:")
    prompt = built(["one"], msgspec.structs.replace(CONFIG, template=template))
    assert [message.role for message in prompt.messages] == ["user"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{context}", "lacks {query}"),
        (b"{query}", "lacks {context}"),
        (b"{query} {context} {querry}", "unknown placeholder {querry}"),
        (b"=== sistem\n{query}\n=== user\n{context}", "parts"),
        (b"=== user\n{query}\n=== user\n{context}", "parts"),
        (b"stray {query}\n=== user\n{context}", "parts"),
        (b"=== system\n{query}{context}", "parts"),
        (b"\xff{query}{context}", "UTF-8"),
    ],
)
def test_a_bad_template_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=problem):
        load_template(str(file))


def test_braces_around_anything_else_mean_themselves(tmp_path: Path) -> None:
    file = tmp_path / "json.txt"
    file.write_text('{"a": {"b": 1}} {} {context} {query}', encoding="utf-8")
    assert load_template(str(file)).user.startswith('{"a": {"b": 1}} {}')


@pytest.mark.parametrize("name", ["nope.v9", "/no/such/file.txt"])
def test_an_unknown_template_is_refused_naming_those_there_are(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"answer\.v1, answer_json\.v1"):
        load_template(name)


def test_a_bad_number_is_refused_and_the_configuration_pickles() -> None:
    with pytest.raises(InvalidInput, match="context_window"):
        PromptConfig(context_window=0)
    with pytest.raises(InvalidInput, match="message_overhead"):
        PromptConfig(message_overhead=-1)
    assert pickle.loads(pickle.dumps(PromptConfig())) == PromptConfig()


def test_the_examples_in_its_documentation_hold() -> None:
    assert doctest.testmod(operators.prompt).failed == 0
