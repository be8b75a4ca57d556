from __future__ import annotations

import doctest

import pytest

import operators.words
from operators.words import content_words, is_chinese, is_number


def test_plural_and_tense_do_not_matter() -> None:
    assert content_words("uses released hopping studies creates wrote") == content_words(
        "used releases hops studied create writes"
    )


@pytest.mark.parametrize(
    ("word", "stem"),
    # The examples of steps 1a and 1b in Porter (1980), with step 5a where it applies ("sized" keeps its e: CVC).
    [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("cats", "cat"),
        ("feed", "feed"),
        ("plastered", "plaster"),
        ("sing", "sing"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("hissing", "hiss"),
        ("sized", "size"),
        ("filing", "file"),
        ("happy", "happi"),
        ("sky", "sky"),
    ],
)
def test_stems_are_those_of_porters_paper(word: str, stem: str) -> None:
    assert content_words(word) == [stem]


def test_stop_words_and_question_words_carry_nothing() -> None:
    assert content_words("Who was the first of them, and why?") == ["first"]
    assert content_words("这是什么？") == []


def test_accents_case_and_full_width_forms_are_folded() -> None:
    assert content_words("GÉZA ｇéｚａ geza's") == ["geza", "geza", "geza"]


def test_numbers_lose_thousands_commas_and_small_ones_become_digits() -> None:
    assert content_words("1,234,567 and 3.5 and twelve and 1,2") == ["1234567", "3.5", "12", "1,2"]
    assert [is_number(word) for word in ("1234567", "3.5", "v2", "a")] == [True, True, False, False]


def test_identifiers_and_versions_stay_whole() -> None:
    assert content_words("user_id v2.15.2 node.js") == ["user_id", "v2.15.2", "node.js"]


def test_chinese_becomes_bigrams_between_function_words() -> None:
    assert content_words("战国无双3是由光荣开发的") == ["战国", "国无", "无双", "3", "光荣", "荣开", "开发"]
    assert content_words("目的") == ["目"]


def test_no_text_has_no_words() -> None:
    assert content_words("") == content_words(" …!? ") == []


def test_only_han_without_kana_is_chinese() -> None:
    assert is_chinese("你好 world")
    assert not is_chinese("こんにちは世界")
    assert not is_chinese("hello")


def test_the_examples_in_its_documentation_hold() -> None:
    assert doctest.testmod(operators.words).failed == 0
