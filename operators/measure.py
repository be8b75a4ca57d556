"""How long a stretch of a text is, in characters or in the tokens of a model."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Protocol

import numpy as np

LONGEST_UNIT = 32
"""Code points that one token may stand for; a longer word, or a longer run without any token, counts as several.

A word piece tokenizer reads a base64 blob as one unknown token, and spaces as none: counted like that, a chunk of 200
tokens could be a whole file.
"""


class Ruler(Protocol):
    """Lengths of stretches of one text. Each call costs O(log n), so the text is tokenized once however it is cut."""

    def length(self, start: int, end: int) -> int:
        """Units that lie, wholly or in part, in `text[start:end]`."""
        ...

    def reach(self, start: int, units: int) -> int:
        """The furthest `end` for which `text[start:end]` is at most `units` long."""
        ...

    def back(self, end: int, units: int) -> int:
        """The earliest `start` for which `text[start:end]` is at most `units` long."""
        ...


class Measure(Protocol):
    """A unit of length for texts; picklable, so that it can be sent to where chunking runs."""

    unit: str  # "tokens" or "characters"

    def ruler(self, text: str) -> Ruler:
        """Measure a whole text, so that any stretch of it can be asked for."""
        ...


class CharacterMeasure:
    """Length in code points."""

    unit = "characters"

    def ruler(self, text: str) -> Ruler:
        """A ruler for `text`; costs nothing.

        Example:
            >>> CharacterMeasure().ruler("北京大学").reach(1, 2)
            3
        """
        return CharacterRuler(len(text))


class CharacterRuler:
    """Lengths in code points of a text of `size` code points."""

    def __init__(self, size: int) -> None:
        self._size = size

    def length(self, start: int, end: int) -> int:
        """Code points of `text[start:end]`."""
        return max(0, end - start)

    def reach(self, start: int, units: int) -> int:
        """The position `units` code points on."""
        return min(self._size, start + units)

    def back(self, end: int, units: int) -> int:
        """The position `units` code points before."""
        return max(0, end - units)


class TokenRuler:
    """Lengths in tokens, from the offsets of all tokens of a text of `size` code points.

    A token that a cut goes through counts on both sides, so a stretch is never longer than its length says. (A
    tokenizer that is shown half a word may make other tokens of it than it made of the whole; cuts are between words
    wherever a word is not longer than the limit.)

    Args:
        offsets: int[T, 2], start and end of each token in code points, both non-decreasing.
        size: Code points of the text.
    """

    def __init__(self, offsets: np.ndarray, size: int) -> None:
        filled = _filled(np.asarray(offsets, np.int32).reshape(-1, 2), size)
        # Memory views: bisect reads them without making 16 million Python integers of a 64 MiB text first.
        self._starts = np.ascontiguousarray(filled[:, 0]).data
        self._ends = np.ascontiguousarray(filled[:, 1]).data
        self._size = size

    def length(self, start: int, end: int) -> int:
        """Tokens that touch `text[start:end]`."""
        return max(0, bisect_left(self._starts, end) - bisect_right(self._ends, start)) if end > start else 0

    def reach(self, start: int, units: int) -> int:
        """Where token number `units`, counted from 0 at `start`, begins."""
        beyond = bisect_right(self._ends, start) + units
        return max(start, self._starts[beyond]) if beyond < len(self._starts) else self._size

    def back(self, end: int, units: int) -> int:
        """Where the token before the last `units` tokens before `end` ends."""
        before = bisect_left(self._starts, end) - units - 1
        return min(end, self._ends[before]) if before >= 0 else 0


def _filled(offsets: np.ndarray, size: int) -> np.ndarray:
    """The offsets with long tokens divided, and with long runs without a token counted as tokens."""
    if not len(offsets):
        return _divided(np.array([[0, size]], np.int32)) if size > LONGEST_UNIT else offsets
    tokens = _divided(offsets)
    gaps = np.stack([np.r_[0, offsets[:, 1]], np.r_[offsets[:, 0], size]], axis=1).astype(np.int32)
    long_gaps = gaps[gaps[:, 1] - gaps[:, 0] > LONGEST_UNIT]
    if not len(long_gaps):
        return tokens
    merged = np.concatenate([tokens, _divided(long_gaps)])
    return merged[np.argsort(merged[:, 0], kind="stable")]


def _divided(intervals: np.ndarray) -> np.ndarray:
    """Each interval longer than the longest unit as several."""
    lengths = intervals[:, 1] - intervals[:, 0]
    if lengths.max(initial=0) <= LONGEST_UNIT:
        return intervals
    counts = np.maximum(1, -(-lengths // LONGEST_UNIT))
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(intervals[:, 0], counts) + within * LONGEST_UNIT
    ends = np.minimum(starts + LONGEST_UNIT, np.repeat(intervals[:, 1], counts))
    return np.stack([starts, ends], axis=1).astype(np.int32)
