"""Variants: other wordings of a question, from the language model that answers.

::

    question, count -> ask -> generate => read -> variants
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import InvalidInput
from engine.graph import Graph, graph
from engine.step import step
from graphs.parts import Parts, Profile
from operators.corpus.manifest import Corpus
from operators.extract import ExtractConfig
from operators.multi_query import Variants, ask_for_variants, read_variants


def variants(source: Parts | Profile | Corpus | str | Path) -> Graph[[str, int], Variants]:
    """The rewording graph of a profile with a language model; it gives no variants when the model fails.

    Raises:
        InvalidInput: The profile's generator is the extractive one, which cannot reword.
    """
    parts = Parts.of(source)
    if isinstance(parts.profile.generator, ExtractConfig):
        raise InvalidInput("multi-query needs a language model, and the extractive generator is none; configure one")
    ask, read = step(ask_for_variants, name="ask"), step(read_variants, name="read")

    @graph
    def variants(question: str, count: int) -> Variants:
        """Rewords a question, at most `count` times."""
        return read(question, count, parts.generate(ask(question, count)))

    return variants
