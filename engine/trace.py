"""Spans of one request, recorded cheaply enough to leave on."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.clock import MONOTONIC, Clock

SKIPPED = "skipped: not asked for"  # the note of a step whose condition did not hold


class Span(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one step did: times in seconds, `start_s` and `end_s` from the trace's beginning.

    `queued_s` is the time in a queue, `served_s` the operator's own time; what is left of
    `end_s - start_s` is the hop: encoding, transport, scheduling. `batch` is the number of items of the largest batch
    that the work ran in, 0 where there was none.
    """

    step: str
    start_s: float
    end_s: float
    queued_s: float
    served_s: float
    note: str = ""
    batch: int = 0

    @property
    def hop_s(self) -> float:
        """Seconds that were neither queue nor operator."""
        return max(0.0, self.end_s - self.start_s - self.queued_s - self.served_s)


class Trace:
    """The spans of one request, in the order in which steps ended.

    Args:
        clock: Source of time.
    """

    __slots__ = ("_began", "_clock", "_rows", "notes")

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._began = clock.now()
        self._rows: list[tuple[str, float, float, float, float, str, int]] = []
        self.notes: list[str] = []

    def record(
        self, step: str, start: float, end: float, queued_s: float, served_s: float, note: str = "", batch: int = 0
    ) -> None:
        """Add a span; `start` and `end` are clock times."""
        self._rows.append((step, start, end, queued_s, served_s, note, batch))

    def note(self, text: str) -> None:
        """Add a line that is not a span: why a fallback was taken, what was left out."""
        self.notes.append(text)

    @property
    def spans(self) -> list[Span]:
        """The spans so far."""
        began = self._began
        return [Span(step, a - began, b - began, q, s, note, batch) for step, a, b, q, s, note, batch in self._rows]

    def total_s(self) -> float:
        """Seconds from the first span's start to the last span's end."""
        spans = self.spans
        return max(s.end_s for s in spans) - min(s.start_s for s in spans) if spans else 0.0

    def busy_s(self) -> float:
        """Seconds in which at least one operator was at work (a queue in front of one counts as its work).

        A remote step's own time lies somewhere inside its round trip; it is taken to be in the middle.
        """
        return _union((span.start_s + span.hop_s / 2, span.end_s - span.hop_s / 2) for span in self.spans)

    def overhead_share(self) -> float:
        """Share of the total in which no operator was at work: what the engine costs, 0 to 1."""
        total = self.total_s()
        return min(1.0, max(0.0, 1 - self.busy_s() / total)) if total > 0 else 0.0

    def waterfall(self, width: int = 40) -> str:
        """The spans as a picture, one line a step: `.` hop, `~` queue, `#` the operator's own time."""
        spans = sorted(self.spans, key=lambda s: (s.start_s, s.end_s))
        if not spans:
            return "no steps ran"
        zero, total = spans[0].start_s, max(self.total_s(), 1e-9)
        name_width = max(len("step"), *(len(s.step) for s in spans))
        head = f"{'step':<{name_width}}  {'queued':>9} {'served':>9} {'hop':>9}  ms"
        lines = [head, *(_bar(s, zero, total, width, name_width) for s in spans)]
        lines.append(f"total {total * 1e3:.1f} ms, engine overhead {100 * self.overhead_share():.1f} %")
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


def _bar(span: Span, zero: float, total: float, width: int, name_width: int) -> str:
    def cell(seconds: float) -> int:
        # Positions are rounded, not lengths, so that bars line up; a far clock may claim more than the round trip.
        return min(width, round(width * seconds / total))

    began = span.start_s - zero
    waits = began + span.hop_s / 2
    works = waits + span.queued_s
    left, queue, work, back = cell(began), cell(waits), cell(works), cell(works + span.served_s)
    bar = "." * (queue - left) + "~" * (work - queue) + "#" * max(1, back - work)
    bar += "." * (cell(span.end_s - zero) - left - len(bar))
    times = f"{span.queued_s * 1e3:9.2f} {span.served_s * 1e3:9.2f} {span.hop_s * 1e3:9.2f}"
    note = f"  ({span.note})" if span.note else ""
    return f"{span.step:<{name_width}}  {times}  |{' ' * left}{bar}{note}"


def _union(intervals: Iterable[tuple[float, float]]) -> float:
    """Total length of overlapping intervals."""
    covered, reach = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > reach:
            covered += end - max(start, reach)
            reach = end
    return covered
