"""What the command line prints: answers as they come, tables, progress; results to stdout, all else to stderr."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from engine.graph import Graph
from engine.run import EngineName, Running, Session
from engine.trace import Trace
from operators.messages import Answer, Citation, Event, Passage, Results, Skipped, Text
from serve.stats_job import CorpusStatistics

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
        click.echo(f"{rank:>3}. {passage.score:.4f}  {_place(passage)}  ({legs})")
        click.echo(f"     {_excerpt(passage.text)}")


def _excerpt(text: str, width: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def print_statistics(found: CorpusStatistics) -> None:
    """What a corpus holds, a line each."""
    config = found.config
    rows = {
        "corpus": found.directory,
        "documents": found.documents,
        "chunks": found.chunks,
        "size": f"{found.size_bytes / 2**20:.1f} MiB",
        "shards": len(found.shards),
        "embedder": f"{config.embedder} ({config.dimension} dimensions, {config.measure})",
        "last change": max((s.updated for s in found.shards), default=None),
    }
    for name, value in rows.items():
        click.echo(f"{name:<12} {value}")
    for shard in found.shards:
        for note in shard.notes:
            click.echo(f"note         shard {shard.shard}: {note}")


def print_trace(trace: Trace) -> None:
    """The waterfall, to stderr."""
    click.echo(f"\n{trace.waterfall()}", err=True)


def print_skipped(skipped: Iterable[Skipped]) -> None:
    """What was left out, and why, to stderr."""
    for one in skipped:
        ERRORS.print(f"skipped {one.path}: {one.reason}", markup=False)


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
