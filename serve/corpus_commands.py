"""Commands for a corpus as a whole: what it holds, whether it is sound, and copies of it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import click
from rich.filesize import decimal

from engine.run import EngineName
from graphs.ingest import commit
from graphs.parts import Parts
from operators.corpus.backup import back_up
from operators.corpus.export import export_collection, export_corpus
from operators.corpus.load import load_corpus
from operators.corpus.manifest import Corpus, open_corpus, renew
from serve import corpus_terminal, terminal
from serve.corpus_jobs import corpus_statistics, verify_corpus
from serve.options import FAILURE, as_json_option, corpus_option, parse_pairs, shared, told
from serve.settings import corpus_directory, read_configuration


@click.command()
@shared
@as_json_option
@told
def stats(corpus: str | None, config: str | None, engine: str, *, as_json: bool) -> None:
    """Say what a corpus holds."""
    parts = Parts(read_configuration(config).profile(open_corpus(corpus_directory(corpus))))
    found = asyncio.run(corpus_statistics(parts, cast("EngineName", engine)))
    if as_json:
        terminal.print_json(found)
    else:
        corpus_terminal.print_statistics(found)


@click.command()
@shared
@click.option("--repair", is_flag=True, help="Remove leftovers and make the indexes anew, if something is wrong.")
@as_json_option
@told
def verify(corpus: str | None, config: str | None, engine: str, *, repair: bool, as_json: bool) -> None:
    """Check that a corpus is sound.

    Its database, and both indexes against it. Exit code 1 says that something is wrong. Others may use the corpus
    meanwhile, but for --repair.
    """
    parts = Parts(read_configuration(config).profile(open_corpus(corpus_directory(corpus))), writable=repair)
    with corpus_terminal.share_bar("verifying") as tell:
        found = asyncio.run(verify_corpus(parts, cast("EngineName", engine), repair=repair, tell=tell))
    if as_json:
        terminal.print_json(found)
    else:
        corpus_terminal.print_verification(found)
    if not found.clean:
        sys.exit(FAILURE)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@corpus_option
@told
def backup(directory: Path, corpus: str | None) -> None:
    """Copy a corpus while it is in use.

    The copy is a corpus: use it where it is, or copy it to where the corpus was, in whose place it comes as a whole.
    """
    with corpus_terminal.share_bar("copying") as tell:
        copy = back_up(_renewed(corpus), directory, tell)
    click.echo(f"{corpus_directory(corpus)} -> {directory}, {decimal(copy.size_bytes)}")
    if copy.without_index:
        click.echo("indexes were being written; the copy makes its own when it is opened", err=True)


@click.command("export")
@click.argument("directory", type=click.Path(path_type=Path))
@corpus_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "anserini"]),
    default="parquet",
    show_default=True,
    help="Parquet holds everything, vectors too; anserini is a JSON collection for pyserini and Anserini.",
)
@told
def export(directory: Path, corpus: str | None, kind: str) -> None:
    """Write a corpus into Parquet files.

    Documents, chunks and vectors, for other tools, or for headrace import.
    """
    with corpus_terminal.share_bar("exporting") as tell:
        if kind == "anserini":
            chunks = export_collection(_renewed(corpus), directory, tell)
            click.echo(f"{chunks:,} chunks -> {directory}")
            return
        written = export_corpus(_renewed(corpus), directory, tell)
    click.echo(f"{written.documents:,} documents, {written.chunks:,} chunks -> {directory}")


@click.command("import")
@click.argument("directory", type=click.Path(path_type=Path))
@shared
@click.option("--shards", type=int, help="Partitions of the new corpus.  [default: as exported]")
@click.option(
    "--index", "settings", metavar="KEY=VALUE", multiple=True, help="Another index setting than exported, such as m=32."
)
@told
def import_(
    directory: Path,
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    shards: int | None,
    settings: tuple[str, ...],
) -> None:
    """Make a new corpus of an export.

    Nothing is embedded again: ids, vectors, versions and times stay as they were.
    """
    changes = parse_pairs(settings) | ({} if shards is None else {"shards": shards})
    configuration = read_configuration(config)
    with corpus_terminal.share_bar("importing") as tell:
        made = load_corpus(directory, corpus_directory(corpus), changes, tell)
    asyncio.run(_make_indexes(Parts(configuration.profile(made), writable=True), cast("EngineName", engine)))
    click.echo(f"{directory} -> {made.directory}")


async def _make_indexes(parts: Parts, engine: EngineName) -> None:
    """Opening a shard for writing makes the indexes that are not there; a commit saves them."""
    async with terminal.started(commit(parts), engine) as running:
        await running()


def _renewed(corpus: str | None) -> Corpus:
    return renew(open_corpus(corpus_directory(corpus)))


CORPUS_COMMANDS: tuple[click.Command, ...] = (stats, verify, export, import_, backup)
