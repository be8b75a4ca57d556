"""Where a text may be cut, and the best place to cut it when only so much fits."""

from __future__ import annotations

import re
from collections.abc import Sequence

import regex  # type: ignore[import-untyped]  # ships no stubs

from operators.measure import Ruler

# Each separator matches up to where the next piece starts: it stays with the piece that it ends.
BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
LINE = re.compile(r"\n\s*")
SENTENCE = re.compile(
    r"""[.!?…]["'”’»)\]]*+\s++(?![a-zà-ÿ])"""  # what goes on in lower case is no new sentence: "e.g. this"
    r"""|[。！？；｡]["'”’」』）】》]*+\s*+(?![。！？；｡])"""
)
CLAUSE = re.compile(r"[,;:]\s+|[，、：]\s*")
SPACE = re.compile(r"\s+")

RECURSIVE = (BLANK_LINE, LINE, SENTENCE, CLAUSE, SPACE)
"""The separators of the recursive strategy, strongest first; below them comes any character boundary."""
REPEATED = (re.compile(f"{LINE.pattern}|{SENTENCE.pattern}"), CLAUSE, SPACE)
"""What an overlap is made of: whole lines and sentences if any fit, else clauses, else words."""

_EXTENDS = regex.compile(r"[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]")
_INK = re.compile(r"\S")
_CLUSTER = regex.compile(r"\X")
_PLAIN_PAIR = re.compile(r"[!-~一-鿿ぁ-ゖァ-ヺ]{2}")  # between two of these there is always a character boundary


class Cutter:
    """Finds cuts in one text. Looks only at the window in which a cut may be, so that all cuts together cost O(n).

    Args:
        text: The text.
        ruler: Its lengths.
        size: The longest piece.
        overlap: The most that a piece may repeat of the one before; below `size`.
    """

    def __init__(self, text: str, ruler: Ruler, *, size: int, overlap: int) -> None:
        self.text = text
        self.ruler = ruler
        self.size = size
        self._overlap = overlap
        self._least_tail = max(1, size // 4)

    def limit(self, start: int) -> int:
        """The furthest cut for a piece from `start`; white space after what fits is free, for it is trimmed."""
        return skip_space(self.text, self.ruler.reach(start, self.size))

    def half(self, start: int) -> int:
        """Where a piece from `start` is half full."""
        return self.ruler.reach(start, self.size // 2)

    def cut(self, start: int, end: int, separators: Sequence[re.Pattern[str]], *, after: int) -> int:
        """Where to end a piece from `start` if all up to `end` does not fit.

        The strongest separator in the second half of what fits wins, and of equals the last; so pieces are at least
        half full, and the last piece is not a mere remnant.

        Args:
            start: Start of the piece; not white space.
            end: End of what is to be cut up.
            separators: Strongest first.
            after: The cut lies beyond this position, for the piece must bring something new.
        """
        furthest = self.limit(start)
        if furthest >= end:
            return end
        low = max(self.half(start), after)
        balanced = min(furthest, self.ruler.back(end, self._least_tail))
        high = balanced if balanced > low else furthest
        for separator in separators:
            found = self._last(separator, low, high)
            if found > low:
                return found
        return skip_space(self.text, self._character_boundary(start, high, after=after))

    def resume(self, start: int, cut: int) -> int:
        """Where the piece after the one from `start` to `cut` starts, so that it repeats whole trailing pieces of it.

        Nothing is repeated if not even a word fits into the overlap, or if no room would be left for anything new.
        """
        if not self._overlap:
            return cut
        low = max(start + 1, self.ruler.back(cut, self._overlap))
        for separator in REPEATED:
            for match in separator.finditer(self.text, max(start, low - 8), cut):
                if low <= match.end() < cut and not _extends(self.text, match.end()):
                    return match.end() if self.limit(match.end()) > cut else cut
        return cut

    def trimmed(self, start: int, end: int) -> tuple[int, int]:
        """The stretch without the white space at its ends; empty, `(end, end)`, if it is blank."""
        start = self.ink(start, end)
        while end > start and self.text[end - 1].isspace():
            end -= 1
        return start, end

    def ink(self, start: int, end: int) -> int:
        """The first position from `start` on that does not hold white space, or `end`."""
        return min(skip_space(self.text, start), end)

    def _last(self, separator: re.Pattern[str], low: int, high: int) -> int:
        """The last place in `(low, high]` where a match of the separator ends, or `low`."""
        found = low
        for match in separator.finditer(self.text, low, min(len(self.text), high + 2)):
            if low < match.end() <= high and not _extends(self.text, match.end()):
                found = match.end()
        return found

    def _character_boundary(self, start: int, high: int, *, after: int) -> int:
        """The last boundary between characters as readers see them in `(after, high]`.

        A character that is itself longer than the size is cut between code points: the size always holds.
        """
        if high > after and _PLAIN_PAIR.match(self.text, high - 1):
            return high
        found = after
        for cluster in _CLUSTER.finditer(self.text, start, min(len(self.text), high + 1)):
            if cluster.end() <= high:
                found = max(found, cluster.end())
        return found if found > max(start, after) else max(high, after + 1)


def skip_space(text: str, position: int) -> int:
    """The first position from `position` on that does not hold white space."""
    found = _INK.search(text, position)
    first = found.start() if found else len(text)
    return first - 1 if first > position and _extends(text, first) else first  # an accent on a space keeps the space


def _extends(text: str, position: int) -> bool:
    """Whether the code point there belongs to the character before it."""
    return position < len(text) and text[position] >= "\u0300" and _EXTENDS.match(text, position) is not None
