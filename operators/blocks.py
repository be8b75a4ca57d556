"""The blocks that a text is made of: headings, paragraphs, lists, tables, code."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """What a block is; decides where it may be cut if it is too long."""

    HEADING = "heading"
    PARAGRAPH = "paragraph"
    LIST = "list"
    TABLE = "table"
    CODE = "code"


class Block(NamedTuple):
    """A block in code points, without the blank lines around it; `depth` of a heading is 1 for the topmost."""

    kind: Kind
    start: int
    end: int
    depth: int = 0


_LINE_KIND = re.compile(
    r"[^\S\n]*(?:(?P<blank>$)"
    r"|(?P<fence>`{3,}(?!.*`)|~{3,})"
    r"|(?P<heading>\#{1,6})(?=[ \t]+\S)"
    r"|(?P<table>\|)"
    r"|(?P<rule>([-=~^*+\#])\6{2,})[ \t]*$"
    r"|(?P<item>(?:[-*+•·]|\d{1,3}[.)])[ \t]+\S|(?:\d{1,3}[、．]|[（(]\d{1,3}[)）])[ \t]*\S))"
)
_UNDERLINE_DEPTH = {"=": 1, "-": 2, "~": 3, "^": 4, "*": 3, "+": 4, "#": 1}
_LONGEST_HEADING = 200  # a longer line above a rule is a paragraph
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?:.*\n){0,200}?---[ \t]*(?:\n|\Z)")
_CLOSES = tuple(")]}")


def markdown_blocks(text: str) -> list[Block]:
    """Blocks of Markdown, reStructuredText or plain text, in order; one pass over the lines.

    Headings are `#` lines and lines that are underlined (in reStructuredText the depth is that of the character, not
    of its order of appearance). A list goes on over blank lines while items or indented lines follow.
    """
    scanner = _Scanner()
    front = _FRONT_MATTER.match(text)
    position = front.end() if front else 0
    if front:
        scanner.add(Kind.CODE, 0, len(front.group().rstrip()))
    while position < len(text):
        newline = text.find("\n", position)
        end = len(text) if newline < 0 else newline
        scanner.line(text[position:end], position, end)
        position = end + 1
    return scanner.closed()


def source_blocks(text: str) -> list[Block]:
    """Blocks of source code: each begins after a blank line with a line that is neither indented nor a closing bracket.

    That is what top-level definitions look like in nearly every language, without a parser for each.
    """
    blocks: list[Block] = []
    start = end = 0
    blank = True
    position = 0
    while position < len(text):
        newline = text.find("\n", position)
        stop = len(text) if newline < 0 else newline
        if not text[position:stop].strip():
            blank = True
        else:
            if blank and end and not text[position].isspace() and not text.startswith(_CLOSES, position):
                blocks.append(Block(Kind.CODE, start, end))
                start = position
            elif not end:
                start = position
            end, blank = stop, False
        position = stop + 1
    return [*blocks, Block(Kind.CODE, start, end)] if end else []


def row_blocks(text: str) -> list[Block]:
    """One table of all rows, for CSV and its like."""
    start, end = len(text) - len(text.lstrip("\n")), len(text.rstrip())
    return [Block(Kind.TABLE, start, end)] if end > start else []


def heading_text(block: Block, text: str) -> str:
    """What a heading says, without its marks; cut to 120 characters."""
    lines = [line.strip() for line in text[block.start : block.end].split("\n")]
    words = next((line for line in lines if line.strip("-=~^*+# ")), "")
    title = re.sub(r"^#{1,6}[ \t]*|[ \t]+#+$", "", words).strip()
    return title if len(title) <= 120 else title[:119] + "…"


class _Scanner:
    """Turns lines into blocks; the block that is being read is open until a line does not belong to it."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._kind: Kind | None = None
        self._start = self._end = 0
        self._lines = 0
        self._gap = False  # a blank line since the last line of the open list
        self._fence = ""
        self._ruled = False  # the open paragraph began with a rule, as headings of reStructuredText may

    def add(self, kind: Kind, start: int, end: int, depth: int = 0) -> None:
        """Close what is open and add a whole block."""
        self._close()
        self._blocks.append(Block(kind, start, end, depth))

    def closed(self) -> list[Block]:
        """All blocks, after the last line."""
        self._close()
        return self._blocks

    def line(self, line: str, start: int, end: int) -> None:
        """Take the next line, which is `text[start:end]`."""
        if self._fence:
            self._in_fence(line, end)
            return
        match = _LINE_KIND.match(line)
        kind = match.lastgroup if match else None
        if kind == "blank":
            self._blank()
        elif kind == "heading":
            self.add(Kind.HEADING, start, end, depth=len(match.group("heading")) if match else 1)
        elif kind == "rule" and self._underlines(end - start):
            self._underlined(line.lstrip()[0], end)
        elif kind == "fence":
            self._open_fence(line, start, end)
        elif kind == "table":
            self._extend(Kind.TABLE, start, end)
        elif kind == "item":
            self._extend(Kind.LIST, start, end)
        else:
            self._text(line, start, end, ruled=kind == "rule")

    def _blank(self) -> None:
        if self._kind is Kind.LIST:
            self._gap = True
        else:
            self._close()

    def _text(self, line: str, start: int, end: int, *, ruled: bool) -> None:
        if self._kind is Kind.LIST and not (self._gap and not line[0].isspace()):
            self._extend(Kind.LIST, start, end)  # an item's next line, or its next paragraph, which is indented
            return
        opens = self._kind is not Kind.PARAGRAPH
        self._extend(Kind.PARAGRAPH, start, end)
        if opens:
            self._ruled = ruled

    def _extend(self, kind: Kind, start: int, end: int) -> None:
        if self._kind is not kind:
            self._close()
            self._kind, self._start, self._lines, self._ruled = kind, start, 0, False
        self._end, self._gap = end, False
        self._lines += 1

    def _close(self) -> None:
        if self._kind is not None:
            self._blocks.append(Block(self._kind, self._start, self._end))
        self._kind, self._gap = None, False

    def _underlines(self, length: int) -> bool:
        """Whether a rule here makes a heading of the open paragraph: one line of words, long enough a rule."""
        return (
            self._kind is Kind.PARAGRAPH
            and self._lines == 1 + self._ruled
            and self._end - self._start <= _LONGEST_HEADING
            and length >= 3
        )

    def _underlined(self, mark: str, end: int) -> None:
        start, self._kind = self._start, None
        self.add(Kind.HEADING, start, end, depth=_UNDERLINE_DEPTH[mark])

    def _open_fence(self, line: str, start: int, end: int) -> None:
        in_list = self._kind is Kind.LIST and line[0].isspace()
        self._extend(Kind.LIST if in_list else Kind.CODE, start, end)
        marks = line.lstrip()
        self._fence = marks[: len(marks) - len(marks.lstrip(marks[0]))]

    def _in_fence(self, line: str, end: int) -> None:
        self._end = end
        mark = line.strip()
        if mark.startswith(self._fence) and not mark.strip(self._fence[0]):
            self._fence = ""
            if self._kind is Kind.CODE:
                self._close()
