"""The command `headrace simulate`: measures a graph here, and foretells it on machines that one does not have."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from engine.errors import InvalidInput
from engine.graph import Graph
from engine.run import EngineName, Session
from engine.scope import Scope
from engine.simulate import Forecast, Place, Times, simulate, times_of
from engine.stream import Stream
from engine.trace import Span, Trace
from graphs.corpus import stats
from graphs.parts import Parts
from graphs.rag import rag
from graphs.search import search
from operators.corpus.manifest import open_corpus
from operators.messages import Question
from operators.trec import read_queries
from serve import terminal
from serve.options import shared, told
from serve.settings import corpus_directory, read_configuration

_PLACE = re.compile(r"(?P<stage>\w*)=(?P<shards>\d+)(x(?P<replicas>\d+))?(x(?P<slots>\d+))?(@(?P<cost>\d+(\.\d+)?))?")
_WARM_UP = 5
# How the time of a step grows with the chunks of a shard; of a walk through HNSW with their logarithm.
_LINEAR, _LOGARITHMIC = ("lexical", "terms"), ("dense", "dense_2")


@click.command("simulate")
@click.option("--graph", "name", type=click.Choice(["search", "rag"]), default="search", show_default=True)
@shared
@click.option("--queries", required=True, help="A BEIR query file: the questions that are measured, 20 or more.")
@click.option("--rate", type=float, help="Questions a second.")
@click.option("--clients", type=int, help="Instead: so many who ask again at once.")
@click.option(
    "--place",
    "places",
    multiple=True,
    help="STAGE=SHARDSxREPLICASxSLOTS@COST, e.g. shard=8x2 or generator=1x4x16@1.20; repeatable. The caller is '=1x2'.",
)
@click.option("--chunks", type=int, help="Of the corpus to come; dense and lexical times are scaled to it.")
@click.option("--requests", type=int, default=10_000, show_default=True, help="Simulated.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@told
def simulate_command(  # noqa: PLR0913 - one parameter an option
    name: str,
    corpus: str | None,
    config: str | None,
    engine: str,
    *,
    queries: str,
    rate: float | None,
    clients: int | None,
    places: tuple[str, ...],
    chunks: int | None,
    requests: int,
    seed: int,
    as_json: bool,
) -> None:
    """Foretell throughput, latency and cost for other numbers of shards, replicas and GPUs.

    Asks the questions here, one after another, takes the time of each step, and simulates the same graph with those
    times on the places that you name. Costs are per copy and hour, in any money.
    """
    configuration, there = read_configuration(config), parse_places(places)
    parts = Parts(configuration.profile(open_corpus(corpus_directory(corpus))))
    graph: Graph[[Question], Any] = search(parts) if name == "search" else rag(parts)
    unknown = sorted(there.keys() - {"", *(stage.name for stage in graph.stages)})
    if unknown:
        raise InvalidInput(f"{name} has no stage {unknown[0]!r}; it has {', '.join(s.name for s in graph.stages)}")
    asked = [Question(query.text, configuration.search) for query in read_queries(Path(queries))]
    spans, here = asyncio.run(_measured(parts, graph, asked, cast("EngineName", engine)))
    shards = there["shard"].shards if "shard" in there else 1
    times = scaled(times_of(spans), here, shards=shards, chunks=chunks)
    found = simulate(graph, times, there, rate=rate, clients=clients, requests=requests, seed=seed)
    if as_json:
        terminal.print_json({"graph": graph.hash, "places": there, "measured": len(spans), "forecast": found})
    else:
        _print(found, asked=len(spans), chunks=chunks or here)


def parse_places(texts: Sequence[str]) -> dict[str, Place]:
    """Places by stage, of texts such as "shard=8x2" and "generator=1x4x16@1.2".

    Raises:
        InvalidInput: One cannot be read.

    >>> parse_places(["shard=8x2", "gpu=1x4x16@1.2"])["gpu"]
    Place(shards=1, replicas=4, slots=16, cost=1.2)
    """
    places: dict[str, Place] = {}
    for text in texts:
        found = _PLACE.fullmatch(text)
        if found is None:
            raise InvalidInput(
                f"--place {text!r}: expected STAGE=SHARDSxREPLICASxSLOTS@COST, such as shard=8x2 or generator=1x4@1.2"
            )
        counts = {key: int(found[key]) for key in ("shards", "replicas", "slots") if found[key]}
        places[found["stage"]] = Place(**counts, cost=float(found["cost"] or 0))
    return places


def scaled(times: dict[str, Times], here: int, *, shards: int, chunks: int | None) -> dict[str, Times]:
    """The times for shards of another size.

    Args:
        times: As measured.
        here: Chunks of a shard of the corpus that was measured.
        shards: Of the corpus to come.
        chunks: Of the corpus to come; None: as many as there are, divided among the shards.
    """
    each = max(2.0, (chunks or here) / shards)
    factors = dict.fromkeys(_LINEAR, each / max(2, here))
    factors |= dict.fromkeys(_LOGARITHMIC, math.log(each) / math.log(max(2, here)))
    return {step: measured.scaled(factors.get(step, 1.0)) for step, measured in times.items()}


async def _measured(
    parts: Parts, graph: Graph[[Question], Any], questions: Sequence[Question], engine: EngineName
) -> tuple[list[list[Span]], int]:
    """The spans of each question, asked alone; and the chunks of one shard."""
    spans: list[list[Span]] = []
    session = Session(engine)
    try:
        running, count = await session.start(graph), await session.start(stats(parts))
        with terminal.progress_bar() as bar:
            task = bar.add_task("measuring", total=len(questions), rate="")
            for number, question in enumerate([*questions[:_WARM_UP], *questions]):
                scope = Scope(trace=Trace())
                answer = await running.within(scope)(question)
                if isinstance(answer, Stream):
                    async for _ in answer:
                        pass
                if number >= _WARM_UP and scope.trace is not None:
                    spans.append(scope.trace.spans)
                    bar.advance(task)
        held = [shard.chunks for shard in await count()]
    finally:
        await session.aclose()
    return spans, round(sum(held) / len(held))


def _print(found: Forecast, *, asked: int, chunks: int) -> None:
    click.echo(f"from {asked} questions asked here, one at a time, for {chunks:,} chunks:")
    click.echo(f"  {found.rate:,.1f} answers/s; p50 {found.p50_s * 1e3:,.1f} ms, p95 {found.p95_s * 1e3:,.1f}, "
               f"p99 {found.p99_s * 1e3:,.1f}")  # fmt: skip
    for stage, share in sorted(found.busy.items(), key=lambda pair: -pair[1]):
        click.echo(f"  {stage or 'caller':<12} {share:>6.1%} busy")
    if found.partial:
        click.echo(f"  {found.partial:.1%} of the answers go without some shards")
    if max(found.busy.values()) > 0.95:
        click.echo("  the busiest stage can do no more: the load is too high, or these are what limits the rate")
    if found.cost_an_hour:
        click.echo(f"  {found.cost_an_hour:,.2f} an hour, {found.cost_of_1000:,.4f} for 1,000 answers")
