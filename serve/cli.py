"""The command `headrace`: parse, run a graph, print what comes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, cast

import click
import msgspec

from engine.errors import HeadraceError, InvalidInput
from engine.graph import Graph
from engine.run import EngineName
from engine.scope import Scope
from engine.trace import Trace
from graphs.ingest import ingest as ingest_graph
from graphs.parts import Parts
from graphs.rag import rag
from graphs.search import search as search_graph
from operators.corpus.manifest import open_corpus
from operators.messages import Question, Settings
from serve import terminal
from serve.ingest_job import IngestJob, IngestReport, Progress
from serve.query_job import answer_queries
from serve.settings import Configuration, corpus_directory, read_configuration
from serve.stats_job import corpus_statistics

P = ParamSpec("P")

USER_MISTAKE, FAILURE, INTERRUPTED = 2, 1, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
def main() -> None:
    """Answers questions from your own documents, with citations."""
    # Models come from packages and paths; a hub is asked only when a configuration names one of its models.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def told(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are one line on stderr: exit code 2 for what the user can mend, 1 for the rest."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except InvalidInput as error:
            click.echo(f"headrace: {error.message}", err=True)
            sys.exit(USER_MISTAKE)
        except HeadraceError as error:
            request = f" (request {error.request_id})" if error.request_id else ""
            click.echo(f"headrace: {error.message}{request}", err=True)
            sys.exit(FAILURE)
        except (KeyboardInterrupt, asyncio.CancelledError):
            click.echo("\nstopped", err=True)
            sys.exit(INTERRUPTED)

    return guarded


def shared(command: Callable[P, None]) -> Callable[P, None]:
    """The options that every command over a corpus has."""
    options = (
        click.option("--corpus", help="Folder of the corpus. [default: $HEADRACE_CORPUS or ~/.headrace/corpus]"),
        click.option("--config", help="TOML file with models and settings. [default: $HEADRACE_CONFIG]"),
        click.option("--engine", type=click.Choice(["local", "ray"]), default="local", help="Where stages run."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def legs_option(text: str) -> dict[str, float]:
    """Legs and weights of `dense,lexical` or `dense=2,lexical=1`.

    Raises:
        InvalidInput: A weight is no number.
    """
    legs: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        try:
            legs[name] = float(weight) if weight else 1.0
        except ValueError:
            raise InvalidInput(
                f"--legs {text!r}: the weight {weight!r} is no number; write dense=2,lexical=1"
            ) from None
    return legs


def settings_of(configuration: Configuration, limit: int | None, legs: str | None) -> Settings:
    """The configured settings, changed by options."""
    settings = configuration.search
    if limit is not None:
        settings = msgspec.structs.replace(settings, limit=limit, candidates=max(limit, settings.candidates))
    return settings if legs is None else msgspec.structs.replace(settings, legs=legs_option(legs))


@main.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@shared
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@told
def ingest(paths: tuple[Path, ...], corpus: str | None, config: str | None, engine: str, *, as_json: bool) -> None:
    """Add files and folders to a corpus; what it already holds is not embedded again.

    A folder in BEIR layout (corpus.jsonl) becomes one document a line under its _id.
    """
    with terminal.progress_bar() as bar:
        task = bar.add_task("ingesting", total=None, rate="")

        def tell(p: Progress) -> None:
            rate = f"files, {p.documents_per_s:.1f} documents/s"
            bar.update(
                task, description=f"{p.documents} documents", total=p.sources, completed=p.sources_read, rate=rate
            )

        job = IngestJob(paths, corpus_directory(corpus), read_configuration(config), tell=tell)
        report = asyncio.run(job.run(cast("EngineName", engine)))
    terminal.print_skipped(report.skipped)
    if as_json:
        terminal.print_json(report)
    else:
        _print_report(report)


def _print_report(report: IngestReport) -> None:
    click.echo(
        f"{report.added} added, {report.replaced} replaced, {report.unchanged} unchanged, "
        f"{len(report.skipped)} skipped: {report.chunks} chunks in {report.seconds:.1f} s -> {report.corpus}"
    )


@main.command()
@click.argument("question", required=False)
@shared
@click.option("--limit", type=int, help="Passages to return.  [default: 10]")
@click.option("--legs", help="Ways of retrieving, with weights: dense,lexical or dense=2,lexical=1.")
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
    limit: int | None,
    legs: str | None,
    queries: str | None,
    run_file: str | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Find the passages that answer a question, or those of a whole file of questions."""
    configuration = read_configuration(config)
    settings = settings_of(configuration, limit, legs)
    parts = Parts(configuration.profile(open_corpus(corpus_directory(corpus))))
    where = cast("EngineName", engine)
    if (queries is None) != (run_file is None) or (queries is None) == (question is None):
        raise InvalidInput('give either a question, or --queries FILE and --run FILE; e.g. headrace search "why?"')
    if queries is not None and run_file is not None:
        count = asyncio.run(answer_queries(parts, settings, Path(queries), Path(run_file), engine=where))
        click.echo(f"{count} questions -> {run_file}", err=True)
        return
    asyncio.run(_search(parts, Question(question or "", settings), engine=where, trace=trace, as_json=as_json))


async def _search(parts: Parts, question: Question, *, engine: EngineName, trace: bool, as_json: bool) -> None:
    scope = Scope(trace=Trace() if trace else None)
    async with terminal.started(search_graph(parts), engine) as running:
        if trace:  # the first question pays for what is set up lazily; the second shows what a question costs
            await running(question)
            scope = Scope(trace=Trace())
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
@click.option("--limit", type=int, help="Passages that the generator reads.  [default: 10]")
@click.option("--legs", help="Ways of retrieving, with weights: dense,lexical or dense=2,lexical=1.")
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
    limit: int | None,
    legs: str | None,
    timeout_s: float | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Answer a question: text as it comes, then the sources. Ctrl-C stops the model at once."""
    configuration = read_configuration(config)
    asked = Question(question, settings_of(configuration, limit, legs))
    parts = Parts(configuration.profile(open_corpus(corpus_directory(corpus))))
    where = cast("EngineName", engine)
    asyncio.run(_ask(parts, asked, engine=where, timeout_s=timeout_s, trace=trace, as_json=as_json))


async def _ask(
    parts: Parts, question: Question, *, engine: EngineName, timeout_s: float | None, trace: bool, as_json: bool
) -> None:
    graph = rag(parts)
    async with terminal.started(graph, engine) as running:
        scope = Scope(timeout_s=timeout_s, trace=Trace() if trace else None)
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


@main.command()
@shared
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@told
def stats(corpus: str | None, config: str | None, engine: str, *, as_json: bool) -> None:
    """Say what a corpus holds."""
    parts = Parts(read_configuration(config).profile(open_corpus(corpus_directory(corpus))))
    found = asyncio.run(corpus_statistics(parts, cast("EngineName", engine)))
    if as_json:
        terminal.print_json(found)
    else:
        terminal.print_statistics(found)


if __name__ == "__main__":
    main()
