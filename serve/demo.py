"""The main job, end to end: ingest documents, ask three questions, then one through a toy language model.

`python -m serve.demo FOLDER`; `make demo` sets everything up and calls it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import click

from engine.run import Session
from engine.scope import Scope
from engine.trace import Trace
from graphs.parts import Parts
from graphs.rag import rag
from operators.corpus.manifest import open_corpus
from operators.messages import Question, Settings
from operators.models.llamacpp import LlamaCppConfig
from serve import terminal
from serve.ingest_job import IngestJob
from serve.settings import Configuration

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = (
    "Who built the Alder Mill, and when?",
    "When are holidays lost that members have not taken?",
    "青石水库的坝高是多少？",
)


async def ingest(folder: Path) -> None:
    """Make the corpus, or bring it up to date."""
    click.echo(
        f"Ingesting docs/ and examples/documents/ into {folder}; the first start of the models takes some seconds."
    )
    report = await IngestJob([ROOT / "docs", ROOT / "examples" / "documents"], folder, Configuration()).run()
    terminal.print_skipped(report)
    click.echo(
        f"{report.added} documents added, {report.replaced} replaced, {report.unchanged} unchanged: "
        f"{report.chunks} chunks in {report.seconds:.1f} s\n"
    )


async def answer(session: Session, parts: Parts, question: str, settings: Settings) -> None:
    """Ask, and print the answer as it comes."""
    running = await session.start(rag(parts))
    trace = Trace()
    began = time.perf_counter()
    click.echo(f"> {question}")
    await terminal.print_answer(await running.within(Scope(trace=trace))(Question(question, settings)))
    click.echo(f"  ({(time.perf_counter() - began) * 1e3:.0f} ms)\n")


async def main(folder: Path) -> None:
    """The demo."""
    await ingest(folder)
    parts = Parts.of(open_corpus(folder))
    session = Session()
    try:
        for question in QUESTIONS:
            await answer(session, parts, question, Settings())
        click.echo("The same graph with a language model in place of the extractive generator. SmolLM2-135M is a toy:")
        click.echo(
            "it shows that tokens stream through llama.cpp. What it says means nothing; its citations are checked.\n"
        )
        toy = parts.answering_with(LlamaCppConfig())
        await answer(session, toy, QUESTIONS[0], Settings(limit=1, max_answer_tokens=48))
    finally:
        await session.aclose()
    click.echo(f'Ask your own:  .venv/bin/headrace ask "..." --corpus {folder}')


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".cache/demo-corpus")))
