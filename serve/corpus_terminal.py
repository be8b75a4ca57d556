"""What commands that look after a corpus print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import click
from rich.cells import cell_len, set_cell_size
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from operators.corpus.findings import Finding
from operators.messages import ChunkPage, Deleted, DocumentPage
from serve.corpus_jobs import CorpusStatistics, CorpusVerification
from serve.terminal import ERRORS, excerpt


def print_statistics(found: CorpusStatistics) -> None:
    """What a corpus holds, a line each."""
    config = found.config
    without = found.chunks - found.indexed_chunks
    rows = {
        "corpus": found.directory,
        "documents": f"{found.documents:,}",
        "chunks": f"{found.chunks:,}" + (f" ({without:,} without a vector, in no index)" if without else ""),
        "tokens": f"{found.tokens:,}",
        "size": ", ".join(f"{name} {decimal(size)}" for name, size in found.size_bytes.items()),
        "shards": str(config.shards),
        "embedder": f"{config.embedder} ({config.dimension} dimensions, {config.measure})",
        "last change": _moment(found.updated) if found.updated else "none",
    }
    for name, value in rows.items():
        click.echo(f"{name:<12} {value}")
    for name, held in found.collections.items():
        documents, chunks = _count(held.documents, "document"), _count(held.chunks, "chunk")
        click.echo(f"{'collection':<12} {name}: {documents}, {chunks}, {held.tokens:,} tokens")
    for shard in found.shards:
        for note in shard.notes:
            click.echo(f"{'note':<12} shard {shard.shard}: {note}")


def print_documents(page: DocumentPage) -> None:
    """One document a line; how many there are to stderr."""
    width = max((cell_len(document.id) for document in page.documents), default=0)
    for one in page.documents:
        counts = f"{one.chunks:>5,} chunks  {one.tokens:>8,} tokens"
        more = [f"v{one.version}", one.title if one.title != one.id else "", one.owner and f"owner {one.owner}",
                ", ".join(one.collections)]  # fmt: skip
        click.echo(f"{set_cell_size(one.id, width)}  {counts}  {_moment(one.updated)}  {'  '.join(filter(None, more))}")
    click.echo(f"{len(page.documents):,} of {_count(page.total, 'document')}", err=True)


def print_chunks(page: ChunkPage) -> None:
    """The place of each chunk and its beginning; how many there are to stderr."""
    for one in page.chunks:
        click.echo(f"{one.chunk_id}  {one.start}-{one.end}  {one.tokens} tokens{'  edited' if one.edited else ''}")
        click.echo(f"     {excerpt(one.text)}")
    click.echo(f"{len(page.chunks):,} of {_count(page.total, 'chunk')}", err=True)


def print_deleted(deleted: Deleted) -> None:
    """What was deleted."""
    click.echo(f"{_count(deleted.documents, 'document')} deleted, {_count(deleted.chunks, 'chunk')}")


def print_missing(ids: tuple[str, ...] | list[str]) -> None:
    """Ids that are not there, to stderr."""
    for one in ids:
        click.echo(f"not there: {one}", err=True)


def print_verification(found: CorpusVerification) -> None:
    """What is wrong and what to do; one line when nothing is."""
    for shard in found.shards:
        for finding in shard.repaired:
            click.echo(f"repaired     {_finding(shard.shard, finding)}")
        for finding in shard.findings:
            click.echo(f"wrong        {_finding(shard.shard, finding)}; {finding.remedy}")
    looked_at = _count(sum(s.documents for s in found.shards), "document")
    chunks = _count(sum(s.chunks for s in found.shards), "chunk")
    click.echo(f"{'clean' if found.clean else 'not clean'}: {looked_at}, {chunks} in {found.directory}")


def _finding(shard: int, finding: Finding) -> str:
    return f"shard {shard}, {finding.part}: {finding.what}: {finding.count:,} (such as {finding.example})"


@contextmanager
def share_bar(description: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, nothing elsewhere; gives what tells it the share that is done, 0 to 1."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=ERRORS, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(description, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
