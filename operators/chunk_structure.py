"""Cutting documents where their structure suggests: at headings, between paragraphs, around lists, tables and code."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from operators.blocks import Block, Kind, heading_text, markdown_blocks, row_blocks, source_blocks
from operators.cut import BLANK_LINE, CLAUSE, LINE, SENTENCE, SPACE, Cutter
from operators.messages import Document
from operators.span import Span

_ROW_TYPES = frozenset({"text/csv", "text/tab-separated-values"})
_SOURCE_TYPES = frozenset({"application/json", "application/jsonl", "application/xml"})

_ITEM = re.compile(r"\n\s*(?=(?:[-*+•·]|\d{1,3}[.)])[ \t]|\d{1,3}[、．]|[（(]\d{1,3}[)）])")
_CELL = re.compile(r"[|,;\t]\s*")
_TOKEN = re.compile(r"[,;{}()]\s*")
_SEPARATORS = {
    Kind.HEADING: (SENTENCE, CLAUSE, SPACE),
    Kind.PARAGRAPH: (SENTENCE, LINE, CLAUSE, SPACE),
    Kind.LIST: (_ITEM, LINE, SENTENCE, CLAUSE, SPACE),
    Kind.TABLE: (LINE, SENTENCE, _CELL, SPACE),
    Kind.CODE: (BLANK_LINE, LINE, _TOKEN, SPACE),
}
_INDENTED = frozenset({Kind.CODE, Kind.LIST})
_LEADS_ON = (":", "：")  # "The options are:" is glued to the list that follows
_DEFINES = re.compile(r"(?!\s*(?:[@#*]|//|/\*|--|$)).*", re.MULTILINE)
_LONGEST_LINE = 160  # code points of a table's header or a definition's first line that are worth repeating


class _Section(NamedTuple):
    """Blocks `first` to `stop` (exclusive) that are cut up together; `bare` if it has no text below its headings."""

    first: int
    stop: int
    depth: int
    bare: bool


def structure_spans(document: Document, cutter: Cutter) -> Iterator[Span]:
    """Pieces of a document along its blocks, in order.

    A section (a heading and what stands under it) is one piece if it fits; small neighbouring sections share one.
    A longer section is cut between its blocks, and a block that alone is too long is cut where its kind allows best:
    a list between items, a table between rows, code at blank lines, a paragraph between sentences. Each piece knows
    the headings above it, and if it continues a table or a definition, that one's first line.
    """
    blocks = _blocks(document)
    if not blocks:
        return
    structure = _Structure(document, cutter, blocks)
    for number, section in enumerate(structure.sections()):
        for start, end in structure.pieces(section):
            yield Span(start, end, structure.context(start), number)


def first_heading(text: str) -> str:
    """The first heading of a Markdown or reStructuredText file, looked for in its first 8,192 code points; or ""."""
    head = text[:8192]
    heading = next((block for block in markdown_blocks(head) if block.kind is Kind.HEADING), None)
    return heading_text(heading, head) if heading else ""


def _blocks(document: Document) -> list[Block]:
    if document.media_type in _ROW_TYPES:
        return row_blocks(document.text)
    return source_blocks(document.text) if _is_source(document) else markdown_blocks(document.text)


def _is_source(document: Document) -> bool:
    return document.media_type.startswith("text/x-") or document.media_type in _SOURCE_TYPES


class _Structure:
    """The blocks of one document, and where they may be cut."""

    def __init__(self, document: Document, cutter: Cutter, blocks: Sequence[Block]) -> None:
        self._document = document
        self._cutter = cutter
        self._blocks = blocks
        self._starts = [block.start for block in blocks]
        self._paths = _paths(blocks, document)

    def sections(self) -> Iterator[_Section]:
        """The sections in order, small ones joined to a neighbour that is not of a higher rank."""
        open_section: _Section | None = None
        for section in _headed(self._blocks):
            if open_section is None:
                open_section = section
            elif self._joins(open_section, section):
                open_section = open_section._replace(stop=section.stop, bare=section.bare)
            else:
                yield open_section
                open_section = section
        if open_section is not None:
            yield open_section

    def pieces(self, section: _Section) -> Iterator[tuple[int, int]]:
        """Where a section is cut: start and end of each piece, trimmed."""
        cutter, blocks = self._cutter, self._blocks
        end = cutter.trimmed(blocks[section.first].start, blocks[section.stop - 1].end)[1]
        start = after = self._ink(blocks[section.first].start, end)
        while start < end:
            cut, inside = self._cut(section, start, end, after)
            yield start, cutter.trimmed(start, cut)[1]
            resumed = cutter.resume(start, cut) if inside is Kind.PARAGRAPH else cut
            start, after = self._ink(max(resumed, self._block_start(cut)) if resumed < cut else cut, end), cut

    def context(self, start: int) -> str:
        """The headings above the piece that starts there, and the first line of the table or code that it continues."""
        index = bisect_right(self._starts, start) - 1
        block, path = self._blocks[index], " > ".join(self._paths[index])
        first_line = self._first_line(block) if self._continues(block, start) else ""
        return "\n".join(part for part in (path, first_line) if part)

    def _joins(self, section: _Section, following: _Section) -> bool:
        if section.bare:
            return True  # a heading alone is no chunk
        if following.depth < section.depth:
            return False
        length, size = self._cutter.ruler.length, self._cutter.size
        start, middle = self._blocks[section.first].start, self._blocks[following.first].start
        end = self._blocks[following.stop - 1].end
        small = min(length(start, middle), length(middle, end)) < size // 4
        return small and length(start, end) <= size

    def _cut(self, section: _Section, start: int, end: int, after: int) -> tuple[int, Kind | None]:
        """Where to end the piece from `start`, and the kind of the block that the cut goes through, if any."""
        cutter = self._cutter
        furthest = cutter.limit(start)
        if furthest >= end:
            return end, None
        last = bisect_right(self._starts, furthest) - 1
        straddling = self._blocks[last]
        between = self._last_boundary(section, last, after)
        if between is not None and (
            between >= cutter.half(start) or cutter.ruler.length(between, straddling.end) <= cutter.size
        ):
            return between, None
        # The block that does not fit is longer than a piece: its beginning fills this one, unless too little would fit.
        if straddling.start > after and cutter.ruler.length(straddling.start, furthest) <= cutter.size // 4:
            return (straddling.start if between is None else between), None
        low = max(after, straddling.start)
        return cutter.cut(start, straddling.end, _SEPARATORS[straddling.kind], after=low), straddling.kind

    def _last_boundary(self, section: _Section, last: int, after: int) -> int | None:
        """The start of the last block up to `last` that need not stay with the one before it."""
        for index in range(last, section.first, -1):
            if self._starts[index] <= after:
                return None
            if not self._leads_on(self._blocks[index - 1]):
                return self._starts[index]
        return None

    def _leads_on(self, block: Block) -> bool:
        text = self._document.text
        return block.kind is Kind.HEADING or (
            block.kind is Kind.PARAGRAPH and text.endswith(_LEADS_ON, block.start, block.end)
        )

    def _ink(self, position: int, end: int) -> int:
        """Where the piece from `position` really starts: after blank lines, before the indentation of code or items."""
        first = self._cutter.ink(position, end)
        if first >= end or self._blocks[bisect_right(self._starts, first) - 1].kind not in _INDENTED:
            return first
        line = self._document.text.rfind("\n", 0, first) + 1
        indented = self._document.text[line:first].isspace()
        return line if indented and self._cutter.ruler.length(line, first) <= self._cutter.size // 4 else first

    def _block_start(self, position: int) -> int:
        return self._starts[bisect_right(self._starts, position) - 1]

    def _continues(self, block: Block, start: int) -> bool:
        is_definition = block.kind is Kind.CODE and _is_source(self._document)
        return (block.kind is Kind.TABLE or is_definition) and start > self._ink(block.start, block.end)

    def _first_line(self, block: Block) -> str:
        text = self._document.text
        if block.kind is Kind.TABLE:
            newline = text.find("\n", block.start, block.end)
            line = text[block.start : newline] if newline >= 0 else ""
        else:
            match = _DEFINES.search(text, block.start, min(block.end, block.start + 4 * _LONGEST_LINE))
            line = match.group() if match else ""
        return line.strip() if len(line) <= _LONGEST_LINE else ""


def _headed(blocks: Sequence[Block]) -> Iterator[_Section]:
    """One section a heading, and one for what stands before the first."""
    first, depth, bare = 0, 0, True
    for index, block in enumerate(blocks):
        if block.kind is not Kind.HEADING:
            bare = False
        else:
            if index:
                yield _Section(first, index, depth, bare)
            first, depth, bare = index, block.depth, True
    yield _Section(first, len(blocks), depth, bare)


def _paths(blocks: Sequence[Block], document: Document) -> list[tuple[str, ...]]:
    """For each block the headings above it, topmost first, without the document's title."""
    paths: list[tuple[str, ...]] = []
    stack: list[tuple[int, str]] = []
    path: tuple[str, ...] = ()
    for block in blocks:
        if block.kind is Kind.HEADING:
            stack = [above for above in stack if above[0] < block.depth]
            paths.append(_titles(stack, document.title))
            stack.append((block.depth, heading_text(block, document.text)))
            path = _titles(stack, document.title)
        else:
            paths.append(path)
    return paths


def _titles(stack: Sequence[tuple[int, str]], title: str) -> tuple[str, ...]:
    titles = tuple(text for _, text in stack)
    return titles[1:] if titles[:1] == (title,) else titles
