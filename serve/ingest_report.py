"""What an ingest has done so far, and what it did."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from engine.clock import MONOTONIC, Clock
from engine.errors import HeadraceError, StepFailed
from operators.messages import Document, Skipped, Written
from serve.ingest_reader import Batch, Found

ROWS = 100_000  # of what was left out; some 30 MB
FAILURES_IN_A_ROW = 20  # so many documents that fail one after the other are not at fault
_WINDOW_S = 30.0  # the rate is that of so many seconds: what is unchanged passes quickly, what is new does not

Refused = tuple[Document, HeadraceError]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an ingest is."""

    documents: int
    sources: int  # read to their ends
    sources_found: int
    size_bytes: int  # of the files found, so much has been ingested
    size_bytes_found: int
    documents_per_s: float  # of late
    seconds_left: float | None  # at the rate of late; None before there is one


class IngestReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an ingest did."""

    corpus: str
    added: int
    replaced: int
    unchanged: int
    chunks: int  # of what was added or replaced
    embedded: int  # texts that the model read
    reused: int  # chunks whose vectors were there already
    skipped: tuple[Skipped, ...]  # the first ROWS of them
    skipped_more: int  # those after them, counted only
    seconds: float
    opening_seconds: float  # of `seconds`, until models and indexes were loaded


class Tally:
    """Counts while an ingest runs.

    Args:
        found: What there is to read.
        clock: Source of time.
    """

    def __init__(self, found: Found, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._found = found
        self._outcomes: Counter[str] = Counter()
        self._skipped: list[Skipped] = []
        self._skipped_more = 0
        self._skip(found.skipped)
        self._chunks = self._sources = self._size_bytes = self._failures = 0
        self._began = self._opened = clock.now()
        self._window: deque[tuple[float, int, int]] = deque()

    def opened(self) -> None:
        """Everything is loaded and the work begins."""
        self._opened = self._clock.now()
        self._window.append((self._opened, 0, 0))

    def add(self, batch: Batch, written: Sequence[Written], refused: Sequence[Refused] = ()) -> None:
        """A batch is done.

        Raises:
            StepFailed: Too many documents have failed in a row; it is the last one's error.
        """
        self._outcomes.update(w.outcome for w in written)
        self._chunks += sum(w.chunks for w in written)
        self._skip([*batch.skipped, *(_row(document, error) for document, error in refused)])
        self._sources += batch.sources
        self._size_bytes += batch.size_bytes
        now = self._clock.now()
        self._window.append((now, self._size_bytes, self._outcomes.total()))
        while len(self._window) > 2 and self._window[1][0] < now - _WINDOW_S:
            self._window.popleft()
        self._check(written, refused)

    def _skip(self, rows: Sequence[Skipped]) -> None:
        room = ROWS - len(self._skipped)
        self._skipped += rows[:room]
        self._skipped_more += len(rows[room:])

    def _check(self, written: Sequence[Written], refused: Sequence[Refused]) -> None:
        failures = [error for _, error in refused if isinstance(error, StepFailed)]
        self._failures = 0 if written else self._failures + len(failures)
        if failures and self._failures >= FAILURES_IN_A_ROW:
            raise failures[-1]

    def progress(self) -> Progress:
        """How far it is."""
        (then, bytes_then, documents_then), (now, bytes_now, documents_now) = self._window[0], self._window[-1]
        elapsed, size_bytes = max(1e-9, now - then), bytes_now - bytes_then
        left = max(0, self._found.size_bytes - self._size_bytes)
        return Progress(
            documents=self._outcomes.total(),
            sources=self._sources,
            sources_found=len(self._found.sources),
            size_bytes=self._size_bytes,
            size_bytes_found=self._found.size_bytes,
            documents_per_s=(documents_now - documents_then) / elapsed,
            seconds_left=left / size_bytes * elapsed if size_bytes else None,
        )

    def report(self, corpus: str, *, embedded: int) -> IngestReport:
        """What it did."""
        now = self._clock.now()
        return IngestReport(
            corpus=corpus,
            added=self._outcomes["added"],
            replaced=self._outcomes["replaced"],
            unchanged=self._outcomes["unchanged"],
            chunks=self._chunks,
            embedded=embedded,
            reused=max(0, self._chunks - embedded),  # texts of documents that were then refused were embedded, too
            skipped=tuple(self._skipped),
            skipped_more=self._skipped_more,
            seconds=now - self._began,
            opening_seconds=self._opened - self._began,
        )


def _row(document: Document, error: HeadraceError) -> Skipped:
    advice = "; nothing of it was stored: report this with the document" if isinstance(error, StepFailed) else ""
    return Skipped(document.source or document.id, f"it was refused: {error.message}{advice}")
