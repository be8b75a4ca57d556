"""Checks of values that a person gives: each message names the value and says what was expected."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from types import UnionType
from typing import Any, Final

from engine.errors import InvalidInput
from operators.messages import HALF_CHARACTER

_SHOWN: Final = 80  # characters of a text that a message shows


def check_kind(name: str, value: Any, kind: type[Any] | UnionType, expected: str) -> None:
    """Refuses a value of another type.

    Raises:
        InvalidInput: It is of another type.
    """
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} is {reprlib.repr(value)}; expected {expected}")


def check_text(name: str, value: Any, *, nul: bool = False) -> None:
    """Refuses what is no text that a corpus can hold.

    Args:
        name: Of the value, for people.
        value: What was given.
        nul: Whether it may hold NUL, as texts of documents may and names may not.

    Raises:
        InvalidInput: It is no text, or holds NUL or half a character, as a command's argument does that is no UTF-8.
    """
    check_kind(name, value, str, "a text")
    half = HALF_CHARACTER.search(value)
    if half or ("\0" in value and not nul):
        what = "half a character" if half else "a NUL character"
        raise InvalidInput(f"{name} is {value[:_SHOWN]!r}, which holds {what}; expected a text in UTF-8")


def check_whole(
    name: str, value: Any, low: int | None = None, high: int | None = None, *, optional: bool = True
) -> None:
    """Refuses what is no whole number within its range; None is one, if it is optional.

    Raises:
        InvalidInput: It is none.
    """
    if value is None and optional:
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (low is not None and value < low) or (high is not None and value > high):
        reach = "" if low is None else f" from {low}" if high is None else f" from {low} to {high}"
        raise InvalidInput(f"{name} is {value!r}; expected a whole number{reach}")


def check_share(name: str, value: Any) -> None:
    """Refuses what is neither None nor a share.

    Raises:
        InvalidInput: It is none.
    """
    if value is not None and not (_is_number(value) and 0 <= value <= 1):  # NaN is not
        raise InvalidInput(f"{name} is {value!r}; expected 0 (every passage) to 1")


def check_seconds(name: str, value: Any) -> None:
    """Refuses what is neither None nor a time.

    Raises:
        InvalidInput: It is none.
    """
    if value is not None and not (_is_number(value) and value > 0):
        raise InvalidInput(f"{name} is {value!r}; expected seconds above 0, or None")


def ids_of(given: Any) -> list[str]:
    """The ids given, of which a text is one.

    Raises:
        InvalidInput: One is no text that a corpus can hold.
    """
    check_kind("ids", given, Iterable, "a document's id, or several")
    ids = [given] if isinstance(given, str) else list(given)
    for one in ids:
        check_text("an id", one)
    return ids


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
