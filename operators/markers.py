"""Finds reference markers such as [1] in text that streams, and drops those that name no source."""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBERS = r"(?:\^|\#|(?:sources?|passages?|doc(?:ument)?s?|来源|资料)[ :：]?)?\d{1,3}"
_HEX_ID = r"(?=[a-f-]{0,36}\d)(?=[\d-]{0,36}[a-f])[0-9a-f][0-9a-f-]{5,36}"
_ITEMS = rf"(?:{_HEX_ID}|{_NUMBERS})(?:[ ]?[,，、;；–-][ ]?(?:{_HEX_ID}|{_NUMBERS})){{0,9}}"
_TAIL = r"(?:(?::\d{1,3})?†[^\[\]【】\n]{0,24})?"
_MARKER = rf"[\[【［][ ]?{{}}{_TAIL}[ ]?[\]】］](?!\()"

MARKER_CHARS = 100  # a longer bracket is no marker
MARKER = re.compile(_MARKER.replace("{}", f"(?P<items>{_ITEMS})"), re.IGNORECASE)
"""A reference such as [1], [1, 2], [1-3], 【1†source】 or [c910e2e]; no markdown link ([1](url)), no year ([2011])."""
MARKERS = re.compile(rf"(?:[ \t]*{_MARKER.replace('{}', f'(?:{_ITEMS})')})+", re.IGNORECASE)
"""Markers in a row, with the blanks before each."""


class Mark(NamedTuple):
    """A marker in a text: its span in code points, and the sources it names."""

    start: int
    end: int
    sources: tuple[int, ...]


_OPENERS = frozenset("[【［")
_CODE_CHARS = 200  # a longer span between backticks is taken for two stray backticks
_PLAIN = re.compile(r"[^\[【［`\n \t]+")
_BLANKS = re.compile(r"[ \t]*")
_BACKTICKS = re.compile(r"`+")
_FENCE_END = re.compile(r"[ \t>]*(?:`{3,}|~{3,})[ \t]*")
_BRACKET_ENDS = re.compile(r"[\]】］\[【［\n]")
_CUT_MARKER = re.compile(r"[\[【［][\s\d,，、;；–a-f-]*\Z", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_INDEXED_NAME = re.compile(r"[A-Za-z]|\w*[_\d]\w*|\w*[a-z][A-Z]\w*")
_CLOSING = ".,;:!?)。，、；：！？）"


class MarkerFilter:
    """Lets text through but for markers that name no source, however the text is split.

    A bracket, a code span or a run of blanks is held until the characters that decide about it have come. `text` is
    what was let through, `marks` the markers in it.
    """

    def __init__(self, sources: int) -> None:
        self._sources = sources
        self._held = ""
        self._fence = ""  # of the code block that is open
        self._code = 0  # where its first line ends at the earliest
        self._skips_blanks = False  # after a marker dropped at the start of a line
        self.text = ""
        self.marks: list[Mark] = []
        self.invented = 0

    def feed(self, text: str) -> str:
        """Take more text; return what is decided."""
        self._held += text
        return self._run(final=False)

    def flush(self) -> str:
        """Decide what is held, since nothing more comes; a marker that was cut off is dropped."""
        return self._run(final=True)

    def _run(self, *, final: bool) -> str:
        before, at = len(self.text), 0
        while at < len(self._held):
            after = self._step(at, final)
            if after is None:
                break
            at = after
        self._held = self._held[at:]
        return self.text[before:]

    def _step(self, at: int, final: bool) -> int | None:
        """Let through, or drop, the token at `at`; return where the next begins, or None to wait for more."""
        held = self._held
        if self._fence:
            return self._step_code(at, final)
        if held[at] == "`":
            return self._step_backticks(at, final)
        blanks = _BLANKS.match(held, at)
        after = blanks.end() if blanks else at
        if after == len(held) and not final:
            return None
        if held[after : after + 1] in _OPENERS:
            return self._step_bracket(at, after, final)
        plain = _PLAIN.match(held, after) if after == at else None
        after = plain.end() if plain else max(after, at + 1)
        return self._pass(held[at:after], after)

    def _pass(self, piece: str, after: int) -> int:
        if not (self._skips_blanks and piece.isspace() and piece != "\n"):
            self.text += piece
        self._skips_blanks = False
        return after

    def _step_code(self, at: int, final: bool) -> int | None:
        end = self._held.find("\n", at)
        stop = len(self._held) if end < 0 else end
        line = self.text[self.text.rfind("\n") + 1 :] + self._held[at:stop]
        inside = self.text.rfind("\n") >= self._code  # below the line that opened the block
        if inside and end < 0 and not final and not line.strip(" \t>" + self._fence[0]):
            return None  # may yet close the block
        if inside and _FENCE_END.fullmatch(line) and self._fence in line:
            self._fence = ""
            return self._pass(self._held[at:stop], stop)
        stop = stop if end < 0 else stop + 1
        return self._pass(self._held[at:stop], stop)

    def _step_backticks(self, at: int, final: bool) -> int | None:
        held = self._held
        run = _BACKTICKS.match(held, at)
        assert run is not None
        if run.end() == len(held) and not final:
            return None
        if len(run[0]) >= 3 and not self._line().strip(" \t>"):
            self._fence, self._code = run[0], len(self.text)
            return self._pass(run[0], run.end())
        stop = min(run.end() + _CODE_CHARS, len(held))
        line_end = held.find("\n", run.end(), stop)
        closing = re.compile(rf"(?<!`){run[0]}(?!`)").search(held, run.end(), stop if line_end < 0 else line_end)
        undecided = line_end < 0 and len(held) <= run.end() + _CODE_CHARS and not final
        if closing and not (undecided and closing.end() == len(held)):
            return self._pass(held[at : closing.end()], closing.end())
        return None if undecided else self._pass(run[0], run.end())

    def _step_bracket(self, blanks: int, at: int, final: bool) -> int | None:
        held = self._held
        stop = at + 1 + MARKER_CHARS
        end = _BRACKET_ENDS.search(held, at + 1, stop)
        if not final and ((end is None and len(held) < stop) or (end is not None and end.end() == len(held))):
            return None
        marker = MARKER.match(held, at, stop)
        if marker and not self._is_index(marker["items"], attached=blanks == at):
            return self._decide(marker, blanks)
        if final and end is None and _CUT_MARKER.match(held, at):
            return len(held)
        return self._pass(held[blanks : at + 1], at + 1)

    def _is_index(self, items: str, *, attached: bool) -> bool:
        numbers = re.findall(r"\d+", items)
        if len(numbers) > 1 and "0" in numbers:
            return True
        name = _NAME.search(self._line()) if attached else None
        return name is not None and (items == "0" or _INDEXED_NAME.fullmatch(name[0]) is not None)

    def _decide(self, marker: re.Match[str], blanks: int) -> int:
        named, unknown = _sources_named(marker["items"], self._sources)
        self.invented += unknown
        gap = self._held[blanks : marker.start()]
        if not named:
            following = self._held[marker.end() : marker.end() + 1]
            opens_line = not self._line().strip()
            if following and not following.isspace() and following not in _CLOSING:
                self._pass(gap, blanks)
            self._skips_blanks = opens_line
            return marker.end()
        self._pass(gap, blanks)
        start = len(self.text)
        whole = marker[0]
        self.text += whole if not unknown else f"{whole[0]}{', '.join(map(str, named))}{whole[-1]}"
        self.marks.append(Mark(start, len(self.text), named))
        return marker.end()

    def _line(self) -> str:
        return self.text[self.text.rfind("\n") + 1 :]


def _sources_named(items: str, sources: int) -> tuple[tuple[int, ...], int]:
    """The numbers in a marker that are sources, and how many numbers or ids are not."""
    numbers: list[int] = []
    unknown = 0
    for item in re.split(r"\s?[,，、;；]\s?", items):
        bounds = re.fullmatch(r"\D*(\d{1,3})(?:\s?[–-]\s?\D*(\d{1,3}))?", item)
        if bounds is None:
            unknown += 1  # an id
            continue
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        numbers += range(first, last + 1) if first <= last else (first, last)
    named = tuple(dict.fromkeys(n for n in numbers if 1 <= n <= sources))
    return named, unknown + sum(1 for n in numbers if not 1 <= n <= sources)


def drop_markers(text: str) -> str:
    """Return `text` without what `cite` would take for markers, which in a copied sentence name other sources.

    >>> drop_markers("Paris is old [12], so `a[0]` says.[3]")
    'Paris is old, so `a[0]` says.'
    """
    markers = MarkerFilter(0)
    return markers.feed(text) + markers.flush()
