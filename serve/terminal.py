"""What the command line prints: answers as they come, tables, progress; results to stdout, all else to stderr."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from engine.graph import Graph
from engine.run import EngineName, Running, Session
from engine.trace import Trace
from operators.messages import Answer, Citation, Event, Partial, Passage, Results, Text
from serve.ingest_report import IngestReport
from serve.ingest_report import Progress as IngestProgress

P = ParamSpec("P")
R = TypeVar("R")

ERRORS = Console(stderr=True, soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


async def print_answer(events: AsyncIterator[Event]) -> Answer | None:
    """Print text as it comes, then the sources that were cited and what no source supports; the answer at the end."""
    answer: Answer | None = None
    async for event in events:
        if isinstance(event, Text):
            click.echo(event.text, nl=False)
            sys.stdout.flush()
        elif isinstance(event, Answer):
            answer = event
    click.echo()
    if answer is not None:
        _print_sources(answer)
    return answer


def _print_sources(answer: Answer) -> None:
    by_source: dict[int, list[Citation]] = {}
    for citation in answer.citations:
        by_source.setdefault(citation.source, []).append(citation)
    if by_source:
        click.echo("\nSources")
    for number, citations in sorted(by_source.items()):
        passage = answer.sources[number - 1]
        support = max(c.support for c in citations)
        click.echo(f"  [{number}] {_place(passage)}  (support {support:.2f})")
    for start, end in answer.unsupported:
        click.echo(f"  not supported by any source: {answer.text[start:end]!r}")
    print_partial(answer.partial)
    if answer.finish_reason == "length":
        click.echo("  (cut at the longest answer allowed)")


def _place(passage: Passage) -> str:
    title = passage.title if passage.title and passage.title != passage.document_id else ""
    return f"{passage.document_id}:{passage.start}-{passage.end}{'  ' + title if title else ''}"


def print_results(results: Results) -> None:
    """Passages with rank, score and place, and the beginning of each."""
    if not results.passages:
        click.echo("nothing found")
    for rank, passage in enumerate(results.passages, start=1):
        legs = ", ".join(f"{leg} {place}" for leg, place in passage.ranks.items() if place)
        score = "" if passage.score is None else f"{passage.score:.4f}  "
        click.echo(f"{rank:>3}. {score}{_place(passage)}  ({legs})")
        click.echo(f"     {excerpt(passage.text)}")
    print_partial(results.partial)


def print_partial(partial: Partial | None) -> None:
    """What is missing, to stderr."""
    if partial is not None:
        shards = ", ".join(map(str, partial.missing))
        ERRORS.print(f"incomplete: no answer from shard {shards}; this is from {partial.coverage:.0%} of the documents")


def excerpt(text: str, width: int = 160) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def print_trace(trace: Trace) -> None:
    """The waterfall, to stderr."""
    click.echo(f"\n{trace.waterfall()}", err=True)


def print_skipped(report: IngestReport) -> None:
    """What was left out, and why, to stderr."""
    for one in report.skipped:
        ERRORS.print(f"skipped {one.path}: {one.reason}", markup=False)
    if report.skipped_more:
        ERRORS.print(f"skipped {report.skipped_more:,} more; mend these and run it again", markup=False)


def print_ingest_report(report: IngestReport) -> None:
    """What an ingest did, in one line."""
    skipped = len(report.skipped) + report.skipped_more
    click.echo(
        f"{report.added} added, {report.replaced} replaced, {report.unchanged} unchanged, "
        f"{skipped} skipped: {report.chunks} chunks ({report.embedded} embedded, {report.reused} reused) "
        f"in {report.seconds:.1f} s -> {report.corpus}"
    )


@contextmanager
def ingest_bar() -> Iterator[Callable[[IngestProgress], None]]:
    """A bar of the bytes ingested, with documents, files, rate and time left; gives what tells it the progress."""
    columns = ("{task.description}", BarColumn(), TaskProgressColumn(), "{task.fields[rate]}", TimeElapsedColumn())
    with Progress(*columns, "{task.fields[left]}", console=ERRORS, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("ingesting", total=None, rate="", left="")

        def tell(p: IngestProgress) -> None:
            left = "" if p.seconds_left is None else f"{timedelta(seconds=round(p.seconds_left))} left"
            description = f"{p.documents:,} documents, {p.sources:,} of {p.sources_found:,} files"
            rate = f"{p.documents_per_s:,.1f} documents/s"
            bar.update(
                task,
                description=description,
                total=p.size_bytes_found,
                completed=p.size_bytes,
                rate=rate,
                left=left,
            )

        yield tell


def progress_bar() -> Progress:
    """A bar with counts and times on a terminal; nothing where stderr is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=ERRORS,
        disable=not sys.stderr.isatty(),
        transient=False,
    )


@asynccontextmanager
async def started(graph: Graph[P, R], engine: EngineName) -> AsyncIterator[Running[P, R]]:
    """A graph running inside the block; on a terminal a line on stderr says why the first answer takes seconds."""
    session = Session(engine)
    try:
        with ERRORS.status("loading models and indexes") if sys.stderr.isatty() else nullcontext():
            running = await session.start(graph)
        yield running
    finally:
        await session.aclose()
