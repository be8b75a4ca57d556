"""Search and answers over an index that pyserini or Anserini made, by its words alone.

::

    question -> planner -> lexical -> best -> fetch -> results -> page (-> prompt -> generate => cite)
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from engine.graph import Graph, graph
from engine.stage import Stage
from engine.step import step
from engine.stream import Stream
from graphs.generators import GeneratorConfig, generator_steps
from operators.cite import cite
from operators.corpus.anserini import AnseriniIndex, plan_for_anserini
from operators.extract import ExtractConfig
from operators.messages import Event, Plan, Question, Results
from operators.prompt import PromptConfig, build_prompt, prompt_texts
from operators.select import cut_to_limit, page, results

_planner = step(plan_for_anserini, name="planner")
_best = step(cut_to_limit, name="best")
_results = step(results)
_page = step(page)
_cite = step(cite)


def anserini_search(
    path: str | Path, *, k1: float = 0.9, b: float = 0.4, analyzer: str = "english"
) -> Graph[[Question], Results]:
    """The search graph over an index; see AnseriniIndex.open for the arguments."""
    retrieve = _Retrieval(path, k1=k1, b=b, analyzer=analyzer)

    @graph
    def anserini_search(question: Question) -> Results:
        """Finds the documents of an Anserini index that answer a question."""
        return retrieve(_planner(question))

    return anserini_search


def anserini_rag(
    path: str | Path,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    analyzer: str = "english",
    generator: GeneratorConfig | None = None,
    prompt: PromptConfig | None = None,
) -> Graph[[Question], Stream[Event]]:
    """The answering graph over an index; without a generator sentences are picked from the documents."""
    retrieve = _Retrieval(path, k1=k1, b=b, analyzer=analyzer)
    generate, count = generator_steps(generator or ExtractConfig())
    config = prompt or PromptConfig()
    texts = step(partial(prompt_texts, config=config), name="texts")
    write = step(partial(build_prompt, config=config), name="prompt")

    @graph
    def anserini_rag(question: Question) -> Stream[Event]:
        """Answers a question from an Anserini index, with citations."""
        plan = _planner(question)
        found = retrieve(plan)
        asked = write(plan, found, count(texts(plan, found)))
        return _cite(asked, generate(asked))

    return anserini_rag


class _Retrieval:
    """Draws the retrieval from one index."""

    def __init__(self, path: str | Path, *, k1: float, b: float, analyzer: str) -> None:
        opening = partial(AnseriniIndex.open, str(Path(path).absolute()), k1=k1, b=b, analyzer=analyzer)
        index = Stage("index", opening, isolated=True)  # a JVM must not share a process with torch
        self._lexical = index.step(AnseriniIndex.lexical)
        self._fetch = index.step(AnseriniIndex.fetch)

    def __call__(self, plan: Plan) -> Results:
        return _page(_results(plan, self._fetch(_best(plan, self._lexical(plan)))))
