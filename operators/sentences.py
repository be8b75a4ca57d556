"""Splits English and Chinese text into sentences, by rules instead of a model.

Blocks come first, line by line: fenced code, headings, list items, table rows, paragraphs. Within a paragraph or an
item a terminator ends a sentence unless it follows an abbreviation or an initial, stands inside a number, a name,
inline code or a 《title》, or a small letter follows. Every rule may look back as far as it likes, but ahead only
`_LOOK` code points into the next sentence: that lets `settled_sentences` cut a text that still grows as the whole will
be cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from operators.markers import MARKER_CHARS, MARKERS
from operators.words import CJK_CHARACTER

_LOOK = 16
_WRAPPED_COLUMNS = 40  # a line at least this wide was broken to fit a page, not to end a sentence
_LINE = re.compile(
    r"""[ \t>]*(?:
        (?P<rule>(?:[=*_~-][ \t]*){3,}|\|[|:\s-]*)\Z |
        (?P<fence>`{3,}|~{3,}) |
        (?P<heading>\#{1,6}[ \t]+) |
        (?P<row>\|[ \t]*) |
        (?P<item>(?:[-*+•]|\(?\d{1,3}[.)])[ \t]+)
    )?""",
    re.VERBOSE,
)
_TERMINATOR = re.compile(r"""(?P<mark>[.!?]+|[。！？｡]+)["'”’»)\]）》」』*_]*""")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘（]*\Z")
_NEXT_WORD = re.compile(r"[\s\"'“‘(]*([^\W\d_]*)")
_TITLES = frozenset(
    """
    mr mrs ms dr prof rev hon gen col capt lt sgt gov sen rep vs e.g i.e cf viz approx ca esp
    """.split()  # noqa: SIM905 - a list of words is read and mended more easily so
)
_BEFORE_NUMBER = frozenset(
    """
    no nos nr fig figs eq eqs vol ch sec art p pp jan feb mar apr jun jul aug sep sept oct nov dec
    """.split()  # noqa: SIM905 - a list of words is read and mended more easily so
)
_MAYBE_LAST = frozenset(
    """
    jr sr inc ltd co corp bros etc al st mt ph.d a.m p.m b.c a.d u.s u.k u.n d.c op ed eds
    """.split()  # noqa: SIM905 - a list of words is read and mended more easily so
)
_STARTERS = frozenset(
    """
    a after all an and as at because both but by each for from he her his how however i if in it its many most no on
    one our she since so some such that the their then there these they this those to we what when where which while
    who with you your
    """.split()  # noqa: SIM905 - a list of words is read and mended more easily so
)


class Kind(Enum):
    """What sort of block a sentence stands in."""

    PROSE = "prose"
    HEADING = "heading"
    ITEM = "item"
    ROW = "row"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A span of a text: code points, end exclusive, without surrounding blanks, bullet or heading signs.

    A fenced code block with its fences is one sentence, and so are a table row and a heading. Markers that follow the
    terminator belong to the sentence.
    """

    start: int
    end: int
    kind: Kind


def split_sentences(text: str) -> list[Sentence]:
    """Return the sentences of `text` in order; they do not overlap, and only blanks and block signs lie between them.

    >>> text = "Dr. Li paid 3.5 yuan. 为什么？没人知道。"
    >>> [text[s.start : s.end] for s in split_sentences(text)]
    ['Dr. Li paid 3.5 yuan.', '为什么？', '没人知道。']
    """
    found: list[Sentence] = []
    for block in _blocks(text):
        for sentence in _cut(text, block):
            if found and MARKERS.fullmatch(text, sentence.start, sentence.end):
                found[-1] = Sentence(found[-1].start, sentence.end, found[-1].kind)
            else:
                found.append(sentence)
    return found


def settled_sentences(text: str) -> list[Sentence]:
    """Return the first sentences of a text that still grows: those that no continuation can change.

    They are a prefix of `split_sentences(text + more)` for every `more`.
    """
    found = split_sentences(text)
    while found:
        following = found.pop().start
        markers = MARKERS.match(text, following)
        at = markers.end() if markers else following
        look = MARKER_CHARS if re.search(r"[\[【［]", text[at : at + 2]) else _LOOK
        if len(text) - at >= look:
            break
    return found


def _blocks(text: str) -> Iterator[Sentence]:
    open_block: Sentence | None = None
    fence = ""
    width = 0  # of the line before
    for start, end in _lines(text):
        line = text[start:end]
        if fence:
            assert open_block is not None
            open_block = Sentence(open_block.start, end, Kind.CODE)
            if line.strip(" \t>").startswith(fence) and not line.strip(" \t>" + fence[0]):
                yield open_block
                open_block, fence = None, ""
            continue
        opener = _LINE.match(line)
        assert opener is not None  # every part of the pattern is optional
        kind = opener.lastgroup
        at = start + opener.end()
        if kind is None and open_block and at < end and (width >= _WRAPPED_COLUMNS or text[at].islower()):
            open_block = Sentence(open_block.start, end, open_block.kind)
        else:
            if open_block:
                yield open_block
            open_block = _opened(kind, at, end) if kind != "fence" else Sentence(start, end, Kind.CODE)
            fence = opener["fence"] or ""
        width = end - at + len(CJK_CHARACTER.findall(line))
        if open_block and open_block.kind in {Kind.HEADING, Kind.ROW}:
            width = 0
            yield open_block
            open_block = None
    if open_block:
        yield open_block


def _lines(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield start, end
        start = end + 1


def _opened(kind: str | None, start: int, end: int) -> Sentence | None:
    if start == end or kind == "rule":
        return None
    return Sentence(start, end, Kind(kind) if kind else Kind.PROSE)


def _cut(text: str, block: Sentence) -> Iterator[Sentence]:
    start = block.start
    if block.kind in {Kind.PROSE, Kind.ITEM}:
        for found in _TERMINATOR.finditer(text, block.start, block.end):
            if found.start() < start or not _ends_sentence(text, start, found, block.end):
                continue
            markers = MARKERS.match(text, found.end(), block.end)
            end = markers.end() if markers else found.end()
            yield from _stripped(text, start, end, block.kind)
            start = end
    yield from _stripped(text, start, block.end, block.kind)


def _stripped(text: str, start: int, end: int, kind: Kind) -> Iterator[Sentence]:
    piece = text[start:end]
    if kind is Kind.ROW:
        piece = piece.rstrip(" \t|")
    left = len(piece) - len(piece.lstrip())
    if left < len(piece):
        yield Sentence(start + left, start + len(piece.rstrip()), kind)


def _ends_sentence(text: str, start: int, found: re.Match[str], stop: int) -> bool:
    at, after = found.start(), found.end()
    before = text[start:at]
    if before.count("`") % 2 or before.count("《") > before.count("》") + found[0].count("》"):
        return False
    markers = MARKERS.match(text, after, stop)
    following = text[markers.end() if markers else after : stop]
    if not following.strip():
        return True
    if found["mark"][0] in "。！？｡":
        return following[0] not in "，、；：,;:"
    if not following[0].isspace() and not markers and not _joins_chinese(before, following):
        return False
    first = following.lstrip()[0]
    return not first.islower() and (found["mark"] != "." or not _abbreviates(before, following))


def _joins_chinese(before: str, following: str) -> bool:
    last = before[-1:]
    return bool(CJK_CHARACTER.match(following) and last and (CJK_CHARACTER.match(last) or last in "”）》"))


def _abbreviates(before: str, following: str) -> bool:
    last = _LAST_WORD.search(before)
    word = last[0] if last else ""
    lowered = word.lower()
    if lowered in _TITLES or (word.isdigit() and word == before.strip()):
        return True
    if lowered in _BEFORE_NUMBER:
        return following.lstrip()[0].isdigit()
    initials = re.fullmatch(r"(?:[A-Z]\.)*[A-Z]", word) and word != "I"
    if lowered in _MAYBE_LAST or initials:
        following_word = _NEXT_WORD.match(following)
        return following_word is None or following_word[1].lower() not in _STARTERS
    return False
