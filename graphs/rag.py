"""RAG: a streamed answer from the documents of a corpus, each sentence linked to what supports it.

::

    question -> planner -> (retrieval as in search.py) -> prompt -> generate => cite => text, citations, answer
"""

from __future__ import annotations

from pathlib import Path

from engine.graph import Graph, graph
from engine.stream import Stream
from graphs.parts import Parts, Profile
from operators.corpus.manifest import Corpus
from operators.messages import Event, Question


def rag(source: Parts | Profile | Corpus | str | Path) -> Graph[[Question], Stream[Event]]:
    """The answering graph over a corpus: a path to one, or a Profile with models and settings of your own."""
    parts = Parts.of(source)

    @graph
    def rag(question: Question) -> Stream[Event]:
        """Answers a question from a corpus, with citations."""
        plan = parts.planner(question)
        found = parts.retrieve(plan)
        prompt = parts.prompt(plan, found)
        return parts.cite(prompt, parts.generate(prompt))

    return rag.noted(parts.notes)
