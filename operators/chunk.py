"""Cutting documents into chunks that are small enough to embed and whole enough to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import msgspec

from engine.errors import InvalidInput
from operators.chunk_structure import structure_spans
from operators.cut import RECURSIVE, Cutter
from operators.measure import Measure, Ruler
from operators.messages import Chunk, ChunkedDocument, Document
from operators.span import Span

Strategy = Literal["structure", "recursive"]
Unit = Literal["tokens", "characters"]

PARENT_SIZES = 4
"""A parent chunk is at most so many chunk sizes long: what a generator may read instead of one small chunk."""


class ChunkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How documents are cut.

    Args:
        strategy: "structure" follows headings, paragraphs, lists, tables and code; "recursive" knows only separators:
            blank lines, lines, sentences, clauses, words.
        size: Longest chunk, in units. 100 to 400 tokens suit most embedders; title and headings are embedded with the
            text, so stay some 50 below the window of the model.
        overlap: The most that a chunk repeats of the one before it, in whole sentences or words. The structure
            strategy repeats only where it had to cut through a paragraph.
        unit: "tokens" of the embedder, or "characters" (code points).
        parents: Whether runs of neighbouring chunks of a section, up to 4 sizes long, become chunks too, as parents.

    Raises:
        InvalidInput: A value is out of its range.
    """

    strategy: Strategy = "structure"
    size: int = 200
    overlap: int = 32
    unit: Unit = "tokens"
    parents: bool = False

    def __post_init__(self) -> None:
        for name, known in (("strategy", get_args(Strategy)), ("unit", get_args(Unit))):
            if getattr(self, name) not in known:
                raise InvalidInput(f"chunk.{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}")
        if self.size < 1:
            raise InvalidInput(f"chunk.size is {self.size}; expected at least 1, and 100 to 400 for most embedders")
        if not 0 <= self.overlap < self.size:
            raise InvalidInput(
                f"chunk.overlap is {self.overlap} and chunk.size {self.size}; the overlap must be 0 or more and less "
                "than the size, usually a sixth of it: set both"
            )


def chunk_document(
    document: Document, config: ChunkConfig, measure: Measure, *, tokens: Measure | None = None
) -> ChunkedDocument:
    """Cut a document.

    Args:
        document: What to cut; text of any length, in time and memory linear in it.
        config: How to cut it.
        measure: Length in the unit that `config` names.
        tokens: Counts the tokens of chunks that are measured in characters; without it those are not counted.

    Returns:
        The document with its chunks in the order of their starts, a parent before its children. For every chunk
        `document.text[start:end] == text`, without white space at its ends (a first line may keep its indentation).
        Every character that is not white space is in a chunk that has no children, and such a chunk is at most
        `config.size` long; only where a single code point takes more tokens than that, it is longer. No cut goes
        through a character as readers see it (a grapheme cluster, Unicode annex 29) unless that one character is
        longer than the size. No chunks for a blank text. The same input gives the same chunks.

    Raises:
        InvalidInput: The measure counts in another unit than `config` names.

    Example:
        >>> from operators.measure import CharacterMeasure
        >>> config = ChunkConfig(strategy="recursive", size=12, overlap=0, unit="characters")
        >>> document = Document(id="d", title="", text="One. Two. 三四五。六七。")
        >>> [chunk.text for chunk in chunk_document(document, config, CharacterMeasure()).chunks]
        ['One. Two.', '三四五。六七。']
    """
    if measure.unit != config.unit:
        raise InvalidInput(f"chunk.unit is {config.unit!r} but the measure counts {measure.unit}; give one that fits")
    ruler = measure.ruler(document.text)
    cutter = Cutter(document.text, ruler, size=config.size, overlap=config.overlap)
    pieces = structure_spans(document, cutter) if config.strategy == "structure" else recursive_spans(cutter)
    spans = [span for span in pieces if span.start < span.end]  # blank: an accented space, cut from its accent
    chunks = _with_parents(spans, cutter) if config.parents else (_chunk(i, s, cutter) for i, s in enumerate(spans))
    counter = ruler if measure.unit == "tokens" else tokens.ruler(document.text) if tokens else None
    return ChunkedDocument(document, tuple(chunks if counter is None else _counted(chunks, counter)))


def recursive_spans(cutter: Cutter) -> Iterator[Span]:
    """Pieces of a whole text by separators alone, in order."""
    start, end = cutter.trimmed(0, len(cutter.text))
    after = start
    while start < end:
        after = cutter.cut(start, end, RECURSIVE, after=after)
        yield Span(*cutter.trimmed(start, after))
        if after >= end:
            return
        start = cutter.ink(cutter.resume(start, after), end)


def _with_parents(spans: Sequence[Span], cutter: Cutter) -> Iterator[Chunk]:
    """The chunks, each run of at least two of one section preceded by a chunk that holds them all."""
    ordinal = 0
    for run in _runs(spans, cutter):
        parent = None
        if len(run) > 1:
            parent, ordinal = ordinal, ordinal + 1
            yield _chunk(parent, Span(run[0].start, run[-1].end, run[0].context), cutter)
        for span in run:
            yield _chunk(ordinal, span, cutter, parent)
            ordinal += 1


def _runs(spans: Sequence[Span], cutter: Cutter) -> Iterator[list[Span]]:
    """Neighbours of one section, as many as a parent may hold."""
    run: list[Span] = []
    for span in spans:
        fits = run and cutter.ruler.length(run[0].start, span.end) <= PARENT_SIZES * cutter.size
        if run and not (fits and span.section == run[0].section):
            yield run
            run = []
        run.append(span)
    if run:
        yield run


def _counted(chunks: Iterable[Chunk], counter: Ruler) -> Iterator[Chunk]:
    return (msgspec.structs.replace(c, tokens=counter.length(c.start, c.end)) for c in chunks)


def _chunk(ordinal: int, span: Span, cutter: Cutter, parent: int | None = None) -> Chunk:
    return Chunk(
        ordinal=ordinal,
        text=cutter.text[span.start : span.end],
        start=span.start,
        end=span.end,
        context=span.context,
        parent=parent,
    )
