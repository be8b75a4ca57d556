"""What a session gives back: passages, answers, statistics, and the events of a streamed answer.

Every stream is tokens, then exactly one completed or error event. As JSON an event names itself in "type":
`{"type": "token", "timestamp_us": ..., "token": "..."}`.
"""

from __future__ import annotations

import time

import msgspec

from engine.errors import HeadraceError, InvalidInput
from operators.messages import Citation, Metadata, Partial, Passage, Usage


class EmptyCorpus(InvalidInput):
    """A question came before any document that whoever asks may see."""


class RagSearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A passage as found: `source[start_offset:end_offset] == text` in code points of the document's text.

    Not so of one that is `edited`: its text was changed by itself, and the offsets say what it stands for.
    """

    chunk_id: str
    document_id: str
    title: str
    text: str
    score: float  # of the step that ordered last: fused ranks, or the cross-encoder; 0 to 1
    semantic_score: float | None  # what score_threshold looks at; None: the chunk has no vector
    metadata: Metadata
    start_offset: int
    end_offset: int
    token_count: int  # as the embedder counts them
    edited: bool  # changed by itself: see RagSession.change_chunk

    @classmethod
    def of(cls, passage: Passage, token_count: int) -> RagSearchResult:
        """The passage in this form."""
        return cls(
            chunk_id=passage.chunk_id,
            document_id=passage.document_id,
            title=passage.title,
            text=passage.text,
            score=passage.score or 0.0,
            semantic_score=passage.semantic,
            metadata=passage.metadata,
            start_offset=passage.start,
            end_offset=passage.end,
            token_count=token_count,
            edited=passage.edited,
        )


class RagResult(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with what it rests on."""

    answer: str
    sources: tuple[RagSearchResult, ...]  # what the generator was shown; citations count them from 1
    citations: tuple[Citation, ...]
    unsupported: tuple[tuple[int, int], ...]  # spans of the answer that no source supports
    context_used: str  # the texts of the sources, with a blank line between two
    queries: tuple[str, ...]  # what was searched for: the question, then its other wordings
    finish_reason: str  # "stop", "length", "no_sources", "no_answer"
    model: str
    usage: Usage  # as the model counts, the rewording of the question included
    retrieval_time_ms: float  # until the passages were there, the rewording included
    generation_time_ms: float  # of waiting for the answer; what the caller did between two events is not in it
    request_id: str
    partial: Partial | None  # shards that did not answer, and the share of the documents in all others; None: all did


class RagStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a session's corpus holds, and what the session was asked since it was opened."""

    indexed_documents: int
    indexed_chunks: int
    total_tokens: int  # of all chunks, as the embedder counts; what overlaps or has a parent, in each that holds it
    size_bytes: int  # on disk: database and indexes
    last_updated: float | None  # of the last change, seconds since 1970; None: there was none
    searches: int
    queries: int


class RagError(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: the name of the error's class in engine/errors.py or of one below it, and what it says."""

    kind: str
    message: str
    step: str | None
    request_id: str


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, tag="token"):
    """A piece of the answer: never the text so far, never half a character."""

    token: str
    timestamp_us: int = msgspec.field(default_factory=now_us)


class CompletedEvent(msgspec.Struct, frozen=True, kw_only=True, tag="completed"):
    """The whole answer, last."""

    result: RagResult
    timestamp_us: int = msgspec.field(default_factory=now_us)


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """Why there is no whole answer, last; the tokens before it stand."""

    error: RagError
    timestamp_us: int = msgspec.field(default_factory=now_us)

    @classmethod
    def of(cls, error: HeadraceError, request_id: str) -> ErrorEvent:
        """The event that tells an error."""
        told = RagError(
            kind=type(error).__name__,
            message=error.message,
            step=error.step,
            request_id=error.request_id or request_id,
        )
        return cls(error=told)


RagEvent = TokenEvent | CompletedEvent | ErrorEvent
