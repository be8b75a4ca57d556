"""The job behind `headrace search --queries`: a file of questions to a TREC run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from engine.errors import InvalidInput
from engine.run import EngineName, Running
from engine.scope import Identity, Priority, Scope
from graphs.parts import Parts
from graphs.search import search
from operators.messages import Question, Results, Settings
from operators.trec import Query, RankedDocument, documents, read_queries, write_run
from serve import terminal

AT_ONCE = 16  # questions on their way; their vectors are made in one batch
DEPTH = 100  # passages a question; documents are fewer


async def answer_queries(
    parts: Parts, settings: Settings, queries: Path, run: Path, *, engine: EngineName, identity: Identity | None = None
) -> int:
    """Search every question of a BEIR query file and write a TREC run: documents by their best chunk.

    Args:
        parts: Models and corpus.
        settings: As for one question; at least 100 passages are ranked.
        queries: JSON lines with _id and text.
        run: Where the run goes; written whole at the end.
        engine: Where stages run.
        identity: Who asks; None sees everything.

    Returns:
        Number of questions.

    Raises:
        InvalidInput: The query file is wrong, or the run cannot be written there; told before anything is searched.
    """
    _refuse_unwritable(run)
    asked = read_queries(queries)
    deep = msgspec.structs.replace(
        settings, limit=max(DEPTH, settings.limit), candidates=max(2 * DEPTH, settings.candidates), include_scores=True
    )
    gate = asyncio.Semaphore(AT_ONCE)
    with terminal.progress_bar() as bar:
        task = bar.add_task("searching", total=len(asked), rate="")

        async def one(running: Running[[Question], Results], query: Query) -> list[RankedDocument]:
            async with gate:
                scope = Scope(priority=Priority.BATCH, identity=identity)
                found = await running.within(scope)(Question(query.text, deep))
            bar.advance(task)
            return documents(found.passages)

        async with terminal.started(search(parts), engine) as running:
            ranked = await asyncio.gather(*(one(running, q) for q in asked))
    with run.open("w", encoding="utf-8") as file:
        for query, found in zip(asked, ranked, strict=True):
            write_run(file, query.id, found)
    return len(asked)


def _refuse_unwritable(run: Path) -> None:
    if run.is_dir() or not run.parent.is_dir():
        raise InvalidInput(
            f"--run {run}: expected a file in a folder that exists; make {run.parent} or name another file"
        )
