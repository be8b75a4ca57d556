"""The graphs that a session runs, started once on shared stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.run import Running, Session
from engine.stream import Stream
from graphs.answer import answer
from graphs.corpus import change_chunk, change_metadata, delete, delete_where, documents, stats
from graphs.ingest import ingest
from graphs.parts import Parts
from graphs.search import search
from graphs.variants import variants
from operators.corpus.reader import ShardStatistics
from operators.messages import (
    Deleted,
    Document,
    DocumentPage,
    Event,
    Listing,
    Metadata,
    Passage,
    Plan,
    Question,
    Results,
    Written,
)
from operators.models.embedder import token_measure
from operators.models.token_measure import TokenMeasure
from operators.multi_query import Variants
from serve.session_config import RagConfig
from serve.session_events import RagSearchResult


@dataclass(frozen=True)
class SessionGraphs:
    """The running graphs.

    `answer` is None in a session that only retrieves, `variants` in one without a language model. `measure` counts
    tokens as the embedder does.
    """

    search: Running[[Question], Results]
    answer: Running[[Plan, Results], Stream[Event]] | None
    variants: Running[[str, int], Variants] | None
    ingest: Running[[list[Document]], list[Written]]
    delete: Running[[list[str]], Deleted]
    delete_where: Running[[dict[str, Any]], Deleted]
    change_metadata: Running[[str, Metadata, bool], bool]
    change_chunk: Running[[str, str], bool]
    documents: Running[[Listing], DocumentPage]
    stats: Running[[], list[ShardStatistics]]
    measure: TokenMeasure

    @classmethod
    async def start(cls, engine: Session, parts: Parts, config: RagConfig) -> SessionGraphs:
        """Start the graphs that a configuration asks for; what they share is started once.

        Raises:
            HeadraceError: A stage cannot be opened.
        """
        return cls(
            answer=await engine.start(answer(parts)) if config.answering else None,  # first: a wrong path fails at once
            search=await engine.start(search(parts)),
            variants=await engine.start(variants(parts)) if config.has_language_model else None,
            ingest=await engine.start(ingest(parts)),
            delete=await engine.start(delete(parts)),
            delete_where=await engine.start(delete_where(parts)),
            change_metadata=await engine.start(change_metadata(parts)),
            change_chunk=await engine.start(change_chunk(parts)),
            documents=await engine.start(documents(parts)),
            stats=await engine.start(stats(parts)),
            measure=token_measure(config.embedder),
        )

    def results(self, passages: Sequence[Passage]) -> tuple[RagSearchResult, ...]:
        """Passages as a session gives them out."""
        return tuple(RagSearchResult.of(p, self.tokens(p)) for p in passages)

    def tokens(self, passage: Passage) -> int:
        """The length of a passage."""
        return len(self.measure.offsets(passage.text))
