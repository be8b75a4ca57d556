from __future__ import annotations

import pytest

from engine.errors import Cancelled, StepFailed
from engine.scope import Scope, entered
from engine.trace import Trace
from operators.messages import Finish, Text, Usage
from operators.multi_query import (
    MAX_VARIANTS,
    Variants,
    ask_for_variants,
    clamp_count,
    parse_variants,
    read_variants,
)

ASKED = "How does the lock refill?"


async def spoken(*pieces, reason="stop", error=None):
    for piece in pieces:
        yield Text(piece)
    if error is not None:
        raise error
    yield Finish(reason, Usage(40, len(pieces)), "model")


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("- one way\n- other way\n- third way", ["one way", "other way", "third way"]),
        ("* one way\n1. other way\n2) third way", ["one way", "other way", "third way"]),
        ("1、水闸如何补水？\n2、怎样给水闸补水？", ["水闸如何补水？", "怎样给水闸补水？"]),
        ("one way\n\n  other way  ", ["one way", "other way"]),  # no marker at all: every line counts
        ("Here you are:\n- one way\nHope it helps!", ["one way"]),  # some have one: the others are talk
        ('- "one way"\n- “other way”', ["one way", "other way"]),
        ("- abc\n- abcd\n- " + "x" * 256 + "\n- " + "y" * 257, ["abcd", "x" * 256]),
        ("- how does  the lock refill\n- HOW DOES THE LOCK REFILL?\n- one way\n- One way.", ["one way"]),
        ("- a way\n- b way\n- c way\n- d way", ["a way", "b way", "c way"]),
        ("1.5 million litres\n-40 degrees", ["1.5 million litres", "-40 degrees"]),  # numbers are no markers
        ("", []),
        ("\n \n", []),
    ],
)
def test_a_reply_is_read_line_by_line(reply, kept):
    assert parse_variants(reply, ASKED, 3) == kept


@pytest.mark.parametrize(("asked", "count"), [(1, 1), (3, 3), (8, 8), (9, 8), (100, 8), (0, 3), (-2, 3)])
def test_the_count_is_clamped(asked, count):
    assert clamp_count(asked) == count


def test_the_prompt_holds_count_and_question_in_one_pass():
    prompt = ask_for_variants("What does {count} mean in {query}?", MAX_VARIANTS)
    system, user = prompt.messages
    assert (system.role, user.role) == ("system", "user")
    assert "8 different" in user.content
    assert "What does {count} mean in {query}?" in user.content
    assert prompt.sources == ()
    assert prompt.max_tokens >= 96


async def test_a_reply_in_pieces_gives_its_variants_and_what_they_cost():
    reply = spoken("- one ", "way\n- oth", "er way")
    assert await read_variants(ASKED, 3, reply) == Variants(("one way", "other way"), Usage(40, 3))


async def test_the_line_that_the_token_limit_cut_is_dropped():
    reply = spoken("- one way\n- other w", reason="length")
    assert (await read_variants(ASKED, 3, reply)).texts == ("one way",)
    assert (await read_variants(ASKED, 3, spoken("- one w", reason="length"))).texts == ()


async def test_a_model_that_fails_gives_no_variants_and_the_trace_says_why():
    trace = Trace()
    with entered(Scope(trace=trace)):
        reply = spoken("- one way\n", error=StepFailed("generate", kind="OSError", text="no weights"))
        assert (await read_variants(ASKED, 3, reply)).texts == ()
    assert "no weights" in trace.notes[0]


async def test_a_cancelled_question_is_no_failure_of_the_model():
    with pytest.raises(Cancelled):
        await read_variants(ASKED, 3, spoken("- one way\n", error=Cancelled("gone")))
