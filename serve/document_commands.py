"""Commands for the documents of a corpus: what there is, and changing it without reading files again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import click

from engine.errors import InvalidInput
from engine.graph import Graph
from engine.run import EngineName
from engine.scope import Scope
from graphs import corpus as graphs
from graphs.parts import Parts
from operators.corpus.manifest import open_corpus
from operators.filter_parse import parse_filter
from operators.messages import Listing
from serve import corpus_terminal, terminal
from serve.checks import check_text
from serve.options import (
    FAILURE,
    Person,
    acting,
    as_json_option,
    filter_option,
    parse_filters,
    parse_pairs,
    scope_option,
    shared,
    told,
)
from serve.settings import corpus_directory, read_configuration

P = ParamSpec("P")
R = TypeVar("R")


class Opened:
    """The corpus that a command's options name, and for whom the command acts.

    Args:
        corpus: Of `shared`, like the next two.
        config: Likewise.
        engine: Likewise.
        person: Of `acting`.
        writable: Whether the command changes something.
    """

    def __init__(
        self, corpus: str | None, config: str | None, engine: str, person: Person, *, writable: bool = False
    ) -> None:
        found = open_corpus(corpus_directory(corpus))
        self._identity = person.identity()
        self.parts = Parts(read_configuration(config).profile(found), writable=writable)
        self._engine = cast("EngineName", engine)

    def run(self, graph: Graph[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What a graph over the corpus answers."""
        return asyncio.run(self._run(graph, *args, **kwargs))

    async def _run(self, graph: Graph[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with terminal.started(graph, self._engine) as running:
            return await running.within(Scope(identity=self._identity))(*args, **kwargs)


@click.command("list")
@shared
@filter_option
@scope_option
@click.option("--chunks", is_flag=True, help="List chunks instead of documents.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Lines at most.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Lines left out: the next page.")
@acting
@as_json_option
@told
def list_(  # noqa: PLR0913 - one parameter an option
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    filter_json: str | None,
    scope: str | None,
    chunks: bool,
    limit: int,
    offset: int,
    person: Person,
    as_json: bool,
) -> None:
    """Show documents, newest first, or chunks."""
    _check_texts(scope, filter_json)
    filters = parse_filter(parse_filters(filter_json or "{}"))
    listing = Listing(filters=filters, scope_prefix=scope or "", limit=limit, offset=offset)
    opened = Opened(corpus, config, engine, person)
    if chunks:
        _print(opened.run(graphs.chunks(opened.parts), listing), corpus_terminal.print_chunks, as_json=as_json)
    else:
        _print(opened.run(graphs.documents(opened.parts), listing), corpus_terminal.print_documents, as_json=as_json)


@click.command()
@click.argument("ids", nargs=-1)
@shared
@filter_option
@click.option("--chunks", is_flag=True, help="The ids are those of chunks.")
@acting
@as_json_option
@told
def delete(
    ids: tuple[str, ...],
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    filter_json: str | None,
    chunks: bool,
    person: Person,
    as_json: bool,
) -> None:
    """Delete documents by id or by a filter.

    They are gone for good when this returns. Exit code 1: some of the ids are not there.
    """
    if bool(ids) == (filter_json is not None) or (chunks and filter_json is not None):
        raise InvalidInput("name either ids or --filter JSON; e.g. headrace delete reports/old.md")
    _check_texts(*ids, filter_json)
    filters = None if filter_json is None else parse_filters(filter_json)
    opened = Opened(corpus, config, engine, person, writable=True)
    if filters is not None:
        deleted = opened.run(graphs.delete_where(opened.parts), filters)
    else:
        deleted = opened.run((graphs.delete_chunks if chunks else graphs.delete)(opened.parts), list(ids))
    _print(deleted, corpus_terminal.print_deleted, as_json=as_json)
    _tell_missing(deleted.missing)


@click.command("set")
@click.argument("document_id", metavar="ID")
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1)
@shared
@click.option("--replace", is_flag=True, help="Drop all other metadata of the document.")
@acting
@told
def set_(
    document_id: str,
    pairs: tuple[str, ...],
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    replace: bool,
    person: Person,
) -> None:
    """Change the metadata of a document.

    Nothing is embedded again. A VALUE that is JSON is taken as that (3, true, null, '["a", "b"]'), any other as text.
    """
    _check_texts(document_id, *pairs)
    metadata = parse_pairs(pairs)
    if not metadata and not replace:
        raise InvalidInput("nothing to set; e.g. headrace set reports/old.md year=2024")
    opened = Opened(corpus, config, engine, person, writable=True)
    if not opened.run(graphs.change_metadata(opened.parts), document_id, metadata, replace):
        raise InvalidInput(f"there is no document {document_id!r}; headrace list shows those that there are")


@click.command()
@click.argument("chunk_id", metavar="CHUNK_ID")
@click.argument("text")
@shared
@acting
@told
def edit(chunk_id: str, text: str, corpus: str | None, config: str | None, engine: str, *, person: Person) -> None:
    """Give a chunk another text, which is embedded.

    The document's own text stays as it is, and ingesting the document again undoes the change.
    """
    _check_texts(chunk_id, text)
    opened = Opened(corpus, config, engine, person, writable=True)
    if not opened.run(graphs.change_chunk(opened.parts), chunk_id, text):
        raise InvalidInput(f"there is no chunk {chunk_id!r}; headrace list --chunks shows those that there are")


@click.command()
@click.argument("name")
@click.argument("ids", nargs=-1, required=True)
@shared
@click.option("--remove", is_flag=True, help="Take the documents out of the collection.")
@acting
@told
def collect(
    name: str,
    ids: tuple[str, ...],
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    remove: bool,
    person: Person,
) -> None:
    """Put documents into a collection.

    Or take them out of it. Exit code 1: some of the ids are not there.
    """
    _check_texts(name, *ids)
    add, drop = ([], [name]) if remove else ([name], [])
    opened = Opened(corpus, config, engine, person, writable=True)
    missing = opened.run(graphs.change_collections(opened.parts), list(ids), add, drop)
    _tell_missing(missing)


def _check_texts(*given: str | None) -> None:
    """Refuses arguments with bytes that are no UTF-8, which Python hands over as half characters."""
    for one in given:
        if one is not None:
            check_text("an argument", one)


def _print(value: Any, in_words: Callable[[Any], None], *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(value)
    else:
        in_words(value)


def _tell_missing(ids: tuple[str, ...] | list[str]) -> None:
    corpus_terminal.print_missing(ids)
    if ids:
        sys.exit(FAILURE)


DOCUMENT_COMMANDS: tuple[click.Command, ...] = (list_, delete, set_, edit, collect)
