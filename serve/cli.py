"""The command `headrace`: parse, run a graph, print what comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click

from engine.errors import InvalidInput
from engine.graph import Graph
from engine.run import EngineName
from engine.scope import Scope
from engine.trace import Trace
from graphs.ingest import ingest as ingest_graph
from graphs.parts import Parts
from graphs.rag import rag
from graphs.search import search as search_graph
from operators.corpus.manifest import open_corpus
from operators.messages import Question
from serve import terminal
from serve.corpus_commands import CORPUS_COMMANDS
from serve.document_commands import DOCUMENT_COMMANDS
from serve.ingest_job import IngestJob
from serve.ingest_reader import Tenancy
from serve.options import Asking, Person, acting, asking, shared, told
from serve.query_job import answer_queries
from serve.serve_command import check_cluster, deploy, environment, serve
from serve.settings import corpus_directory, read_configuration
from serve.simulate_command import simulate_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
def main() -> None:
    """Answers questions from your own documents, with citations."""
    # Models come from packages and paths; a hub is asked only when a configuration names one of its models.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@main.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@shared
@click.option("--owner", default="", help="Whose the documents are: others may neither see nor change them.")
@click.option("--collection", "collections", multiple=True, help="A collection that the documents go into; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@told
def ingest(
    paths: tuple[Path, ...],
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    owner: str,
    collections: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add files and folders to a corpus; what it already holds is not embedded again.

    A folder in BEIR layout (corpus.jsonl) becomes one document a line under its _id. Stopped or killed, run it again:
    it goes on where it ended. With --engine ray the machines of the Ray cluster read, cut and embed.
    """
    tenancy = Tenancy(owner, tuple(dict.fromkeys(collections)))
    with terminal.ingest_bar() as tell:
        kind = _ray_job() if engine == "ray" else IngestJob
        job = kind(paths, corpus_directory(corpus), read_configuration(config), tenancy=tenancy, tell=tell)
        report = asyncio.run(job.run())
    terminal.print_skipped(report)
    if as_json:
        terminal.print_json(report)
    else:
        terminal.print_ingest_report(report)


def _ray_job() -> type[IngestJob]:
    from serve.ray_ingest import RayIngestJob  # noqa: PLC0415 - one process needs no Ray

    return RayIngestJob


@main.command()
@click.argument("question", required=False)
@shared
@asking
@acting
@click.option("--queries", type=click.Path(), help="A BEIR query file instead of a question.")
@click.option("--run", "run_file", type=click.Path(), help="Where the TREC run for --queries goes.")
@click.option("--trace", is_flag=True, help="Show where the time went.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@told
def search(  # noqa: PLR0913 - one parameter an option
    question: str | None,
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    asked: Asking,
    person: Person,
    queries: str | None,
    run_file: str | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Find the passages that answer a question, or those of a whole file of questions."""
    configuration = read_configuration(config)
    settings, identity = asked.settings(configuration), person.identity()
    parts = Parts(configuration.profile(open_corpus(corpus_directory(corpus))))
    where = cast("EngineName", engine)
    if (queries is None) != (run_file is None) or (queries is None) == (question is None):
        raise InvalidInput('give either a question, or --queries FILE and --run FILE; e.g. headrace search "why?"')
    if queries is not None and run_file is not None:
        job = answer_queries(parts, settings, Path(queries), Path(run_file), engine=where, identity=identity)
        click.echo(f"{asyncio.run(job)} questions -> {run_file}", err=True)
        return
    scope = Scope(trace=Trace() if trace else None, identity=identity)
    asyncio.run(_search(parts, Question(question or "", settings), scope, engine=where, as_json=as_json))


async def _search(parts: Parts, question: Question, scope: Scope, *, engine: EngineName, as_json: bool) -> None:
    async with terminal.started(search_graph(parts), engine) as running:
        if scope.trace is not None:  # the first question pays for what is set up lazily; this one shows what one costs
            await running.within(Scope(identity=scope.identity))(question)
        results = await running.within(scope)(question)
    if as_json:
        terminal.print_json(results)
    else:
        terminal.print_results(results)
    if scope.trace is not None:
        terminal.print_trace(scope.trace)


@main.command()
@click.argument("question")
@shared
@asking
@acting
@click.option("--timeout", "timeout_s", type=float, help="Seconds after which the answer ends.")
@click.option("--trace", is_flag=True, help="Show where the time went.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, when the answer is whole.")
@told
def ask(  # noqa: PLR0913 - one parameter an option
    question: str,
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    asked: Asking,
    person: Person,
    timeout_s: float | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Answer a question: text as it comes, then the sources. Ctrl-C stops the model at once."""
    configuration = read_configuration(config)
    whole, identity = Question(question, asked.settings(configuration)), person.identity()
    parts = Parts(configuration.profile(open_corpus(corpus_directory(corpus))))

    def scope() -> Scope:  # made when the models are there: loading them takes nothing from the time for the answer
        return Scope(timeout_s=timeout_s, trace=Trace() if trace else None, identity=identity)

    asyncio.run(_ask(parts, whole, scope, engine=cast("EngineName", engine), as_json=as_json))


async def _ask(
    parts: Parts, question: Question, new_scope: Callable[[], Scope], *, engine: EngineName, as_json: bool
) -> None:
    graph = rag(parts)
    async with terminal.started(graph, engine) as running:
        scope = new_scope()
        events = await running.within(scope)(question)
        try:
            if as_json:
                last = [event async for event in events][-1]
                terminal.print_json(
                    {"request": scope.id, "graph": graph.hash, "question": question.text, "answer": last}
                )
            else:
                await terminal.print_answer(events)
        finally:
            await events.aclose()
    if scope.trace is not None:
        terminal.print_trace(scope.trace)


@main.command()
@click.argument("graph", type=click.Choice(["ingest", "search", "rag"]))
@shared
@click.option("--dot", is_flag=True, help="Graphviz source instead of words.")
@told
def explain(graph: str, corpus: str | None, config: str | None, engine: str, *, dot: bool) -> None:
    """Draw a graph: steps, types, fused groups, hops, resources. Nothing is started."""
    del engine  # the picture is the same wherever it runs
    parts = Parts(read_configuration(config).profile(open_corpus(corpus_directory(corpus))))
    graphs: dict[str, Callable[[Parts], Graph[..., Any]]] = {"ingest": ingest_graph, "search": search_graph, "rag": rag}
    drawn = graphs[graph](parts)
    click.echo(drawn.dot() if dot else drawn.explain())


for _command in (serve, deploy, environment, check_cluster, simulate_command, *DOCUMENT_COMMANDS, *CORPUS_COMMANDS):
    main.add_command(_command)


if __name__ == "__main__":
    main()
