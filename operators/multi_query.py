"""Other wordings of a question: how a language model is asked for them, and how its reply is read.

Searching for several wordings and fusing what they find (RAG-Fusion: Rackauckas, 2024) finds passages that share few
words with the question as it was asked. See graphs/variants.py and operators/fuse_results.py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from engine.errors import HeadraceError, RequestEnded
from engine.scope import current_scope
from operators.messages import ChatMessage, Delta, Finish, Prompt, Usage

DEFAULT_VARIANTS: Final = 3
MAX_VARIANTS: Final = 8
TEMPLATE: Final = "variants.v1"
TOKENS_PER_VARIANT: Final = 32  # a long question; what is cut off there is dropped

_SHORTEST, _LONGEST = 4, 256  # code points of a wording that is kept
_MARKER = re.compile(r"(?:[-*•]\s+|\d{1,2}(?:[.)]\s+|[、．]\s*))")
_QUOTES = "\"'“”‘’「」`"
_log = logging.getLogger(__name__)


class Variants(msgspec.Struct, frozen=True):
    """Other wordings of a question, and what asking for them cost."""

    texts: tuple[str, ...]
    usage: Usage


def clamp_count(count: int) -> int:
    """How many wordings are asked for: `count`, at most `MAX_VARIANTS`; `DEFAULT_VARIANTS` when it is 0 or less.

    Example:
        >>> [clamp_count(n) for n in (-1, 0, 2, 9)]
        [3, 3, 2, 8]
    """
    return min(count, MAX_VARIANTS) if count > 0 else DEFAULT_VARIANTS


def ask_for_variants(question: str, count: int) -> Prompt:
    """The prompt that asks for `count` other wordings of a question; it has no sources."""
    values = {"count": str(count), "query": question}
    system, user = _template()
    return Prompt(
        question=question,
        messages=(
            ChatMessage("system", system),
            ChatMessage("user", re.sub(r"\{(count|query)\}", lambda found: values[found[1]], user)),  # a single pass
        ),
        sources=(),
        max_tokens=TOKENS_PER_VARIANT * count,
        template=TEMPLATE,
    )


async def read_variants(question: str, count: int, deltas: AsyncIterator[Delta]) -> Variants:
    """The wordings in a model's reply; none when the model fails: then the question alone is searched for.

    A failure is noted in the request's trace and in the log. A line that the token limit cut is dropped.

    Args:
        question: What was reworded.
        count: The most wordings to keep.
        deltas: The reply to `ask_for_variants`.

    Raises:
        RequestEnded: The request was cancelled, or its time is spent: that is no failure of the model.
    """
    pieces: list[str] = []
    usage = Usage(0, 0)
    try:
        async for delta in deltas:
            if isinstance(delta, Finish):
                usage = delta.usage
                if delta.reason == "length":
                    pieces = ["".join(pieces).rpartition("\n")[0]]
            else:
                pieces.append(delta.text)
    except RequestEnded:
        raise
    except HeadraceError as error:
        _report(error)
        return Variants((), usage)
    return Variants(tuple(parse_variants("".join(pieces), question, count)), usage)


def parse_variants(reply: str, question: str, count: int) -> list[str]:
    r"""The wordings in a reply, in its order.

    One line is one wording. Where some lines begin with a list marker ("-", "*", "1.", "1)", "1、"), those without one
    are talk and are left out. Markers and quotation marks around a line are taken off. What then has fewer than 4 or
    more than 256 code points, repeats the question or an earlier line (but for case, blanks and the last mark), or
    comes after `count` others, is dropped.

    Example:
        >>> parse_variants("Sure:\n- Who built it?\n2) Whose work is the mill?\n* ok", "who built  it", 3)
        ['Whose work is the mill?']
    """
    lines = [line.strip() for line in reply.splitlines()]
    marked = [line for line in lines if _MARKER.match(line)]
    seen = {_compared(question)}
    kept: list[str] = []
    for line in marked or lines:
        text = _MARKER.sub("", line, count=1).strip().strip(_QUOTES).strip()
        if _SHORTEST <= len(text) <= _LONGEST and _compared(text) not in seen and len(kept) < count:
            seen.add(_compared(text))
            kept.append(text)
    return kept


def _compared(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip("?？.。!！ ")


@cache
def _template() -> tuple[str, str]:
    """The parts of the packaged prompt: system, user."""
    text = resources.files("operators.prompts").joinpath(f"{TEMPLATE}.txt").read_text(encoding="utf-8")
    _, system, user = re.split(r"^=== \w+\n", text, flags=re.MULTILINE)
    return system.strip(), user.strip()


def _report(error: HeadraceError) -> None:
    _log.warning("no other wordings: the language model failed; the question alone is searched for", exc_info=error)
    trace = current_scope().trace
    if trace is not None:
        trace.note(f"variants: searched for the question alone, the model failed: {error}")
