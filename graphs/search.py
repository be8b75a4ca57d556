"""Search: the passages that answer a question, best first.

::

    question -> planner -+-> embed -> dense ---+-> fuse -> seeds -> vectors -> refine -> dense -> fuse -> best -> fetch
                         +-> (terms) -> lexical +--------------------------------------------------^
"""

from __future__ import annotations

from pathlib import Path

from engine.graph import Graph, graph
from graphs.parts import Parts, Profile
from operators.corpus.manifest import Corpus
from operators.messages import Question, Results


def search(source: Parts | Profile | Corpus | str | Path) -> Graph[[Question], Results]:
    """The search graph over a corpus: a path to one, or a Profile with models and settings of your own."""
    parts = Parts.of(source)

    @graph
    def search(question: Question) -> Results:
        """Finds the passages that answer a question."""
        return parts.retrieve(parts.planner(question))

    return search.noted(parts.notes)
