"""Answer: the second half of rag.py, for passages that were found already.

::

    plan, results -> prompt -> generate => cite => text, citations, answer
"""

from __future__ import annotations

from pathlib import Path

from engine.graph import Graph, graph
from engine.stream import Stream
from graphs.parts import Parts, Profile
from operators.corpus.manifest import Corpus
from operators.messages import Event, Plan, Results


def answer(source: Parts | Profile | Corpus | str | Path) -> Graph[[Plan, Results], Stream[Event]]:
    """The graph that answers from given passages; without any it calls no model and says so."""
    parts = Parts.of(source)

    @graph
    def answer(plan: Plan, found: Results) -> Stream[Event]:
        """Answers a question from the passages that were found for it, with citations."""
        prompt = parts.prompt(plan, found)
        return parts.cite(prompt, parts.generate(prompt))

    return answer
