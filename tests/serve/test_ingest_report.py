"""The tally of an ingest, with a clock that is moved by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from engine.clock import VirtualClock
from engine.errors import InvalidInput, StepFailed
from operators.messages import Document, Skipped, Written
from operators.read import Source
from serve import ingest_report, terminal
from serve.ingest_reader import Batch, Found
from serve.ingest_report import FAILURES_IN_A_ROW, Progress, Tally

FOUND = Found([Source("/a", "a"), Source("/b", "b")], [Skipped("/link", "a link")], 1000)


def written(*outcomes):
    return [Written(str(n), outcome, 0 if outcome == "unchanged" else 3) for n, outcome in enumerate(outcomes)]


def batch(size_bytes=100, sources=0):
    return Batch([], [], sources, size_bytes)


def document(name="d", source=""):
    return Document(id=name, title="", text="", source=source)


async def test_the_rate_is_that_of_late_and_the_time_left_follows_from_it():
    clock = VirtualClock()
    tally = Tally(FOUND, clock)
    await clock.advance(5)
    tally.opened()
    assert tally.progress().seconds_left is None
    await clock.advance(10)
    tally.add(batch(100), written("added"))
    assert tally.progress().seconds_left == pytest.approx(90)
    for _ in range(10):  # faster from now on: in 30 s the window has forgotten the slow start
        await clock.advance(10)
        tally.add(batch(50, sources=0), written("unchanged", "unchanged"))
    progress = tally.progress()
    assert progress.documents_per_s == pytest.approx(0.2)
    assert (progress.documents, progress.size_bytes, progress.size_bytes_found) == (21, 600, 1000)
    assert progress.seconds_left == pytest.approx(400 / 5)


async def test_the_report_counts_and_tells_loading_from_work():
    clock = VirtualClock()
    tally = Tally(FOUND, clock)
    await clock.advance(4)
    tally.opened()
    await clock.advance(6)
    tally.add(batch(sources=2), written("added", "added", "replaced", "unchanged"))
    report = tally.report("corpus", embedded=5)
    assert (report.added, report.replaced, report.unchanged) == (2, 1, 1)
    assert (report.chunks, report.embedded, report.reused) == (9, 5, 4)
    assert (report.seconds, report.opening_seconds) == (10, 4)
    assert report.skipped == (Skipped("/link", "a link"),)


def test_a_refused_document_is_a_row_with_its_place_and_reason():
    tally = Tally(FOUND)
    refused = [
        (document(source="/a"), InvalidInput("too long")),
        (document("id only"), StepFailed("chunk", kind="K", text="t")),
    ]
    tally.add(batch(), [], refused)
    rows = tally.report("c", embedded=0).skipped[1:]
    assert rows[0] == Skipped("/a", "it was refused: too long")
    assert rows[1].path == "id only"
    assert "step 'chunk' failed: K: t" in rows[1].reason


def test_rows_are_kept_up_to_a_number_and_counted_beyond_it(monkeypatch):
    monkeypatch.setattr(ingest_report, "ROWS", 3)
    tally = Tally(FOUND)
    for n in range(3):
        tally.add(batch(), [], [(document(source=f"/{n}"), InvalidInput("bad"))] * 2)
    report = tally.report("c", embedded=0)
    assert ([row.path for row in report.skipped], report.skipped_more) == (["/link", "/0", "/0"], 4)


def failing(count):
    return [(document(), StepFailed("embed", kind="K", text=str(n))) for n in range(count)]


def test_many_documents_that_fail_in_a_row_end_the_job_with_the_last_error():
    tally = Tally(FOUND)
    tally.add(batch(), [], failing(FAILURES_IN_A_ROW - 1))
    with pytest.raises(StepFailed, match="K: 0"):
        tally.add(batch(), [], failing(1))


def test_a_success_in_between_and_documents_at_fault_themselves_do_not():
    tally = Tally(FOUND)
    for _ in range(3):
        tally.add(batch(), written("added"), failing(FAILURES_IN_A_ROW - 1))
        tally.add(batch(), [], [(document(), InvalidInput("bad"))] * FAILURES_IN_A_ROW)


def test_the_bar_shows_documents_files_bytes_rate_and_time_left(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(terminal, "ERRORS", Console(file=shown, force_terminal=True, width=160))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with terminal.ingest_bar() as tell:
        tell(
            Progress(
                documents=1234,
                sources=3,
                sources_found=80,
                size_bytes=250,
                size_bytes_found=1000,
                documents_per_s=45.67,
                seconds_left=90.2,
            )
        )
    for words in ("1,234 documents, 3 of 80 files", "25%", "45.7 documents/s", "0:01:30 left"):
        assert words in shown.getvalue()


def test_without_a_terminal_there_is_no_bar(capsys):
    with terminal.ingest_bar():
        pass
    assert capsys.readouterr() == ("", "")
