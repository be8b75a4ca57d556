"""What flows along the edges of the ready-made graphs: questions, plans, rankings, passages, prompts, events.

Shape legend: K = hits of one ranking, ordered by (score descending, key ascending).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NewType

import msgspec
import numpy as np

from engine.errors import InvalidInput
from operators.filter_tree import EVERYTHING, Filter

MAX_LISTED = 2**31  # as an offset, and as a limit

HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # a lone surrogate, which UTF-8 cannot hold

DocumentId = NewType("DocumentId", str)
ChunkKey = NewType("ChunkKey", int)  # 63 bits of a hash of (document id, ordinal): the same whatever the shard count

Metadata = dict[str, Any]  # JSON values


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one question is to be answered; every field has a default that suits most corpora."""

    limit: int = 10  # passages returned or shown to the generator
    offset: int = 0  # best passages left out before them: the next page
    legs: dict[str, float] = msgspec.field(default_factory=lambda: {"dense": 1.0, "lexical": 1.0})  # weight 0: left out
    candidates: int = 100  # hits that each leg fetches before fusion
    rerank_candidates: int = 50  # passages that the cross-encoder reads at most
    filters: dict[str, Any] = msgspec.field(default_factory=dict)  # see operators/filter_tree.py
    scope_prefix: str = ""  # only documents whose id begins so
    score_threshold: float | None = None  # least semantic score of a passage, whichever leg found it; None: any
    ef_search: int = 0  # HNSW: candidates weighed; 0: as the corpus says
    measure: str = ""  # of the dense leg; another than the corpus's compares every vector. Empty: the corpus's
    include_scores: bool = True
    include_metadata: bool = True
    language: str = ""  # "en", "zh", ...; empty: guessed from the question
    max_answer_tokens: int = 512
    answer_schema: dict[str, Any] | None = None  # a JSON schema that the answer must follow


class Question(msgspec.Struct, frozen=True):
    """What a person asks."""

    text: Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1})]  # told in words by who plans it
    settings: Settings = msgspec.field(default_factory=Settings)


class Leg(msgspec.Struct, frozen=True):
    """One way of retrieving: its name, its weight in fusion, the hits that it fetches."""

    name: str
    weight: float
    limit: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner made of a question: everything that later steps need to know."""

    question: str
    strategy: str  # "hybrid", or the name of the only leg
    legs: tuple[Leg, ...]
    limit: int
    rerank_candidates: int
    language: str
    filters: Filter = EVERYTHING
    scope_prefix: str = ""
    offset: int = 0
    candidates: int = 0  # hits of each leg that are fused at once; see operators/fuse.py. 0: all of them
    score_threshold: float | None = None
    ef_search: int = 0
    measure: str = ""
    include_scores: bool = True
    include_metadata: bool = True
    max_answer_tokens: int = 512
    answer_schema: dict[str, Any] | None = None

    def leg(self, name: str) -> Leg | None:
        """The leg of that name, or None when the plan leaves it out."""
        return next((leg for leg in self.legs if leg.name == name), None)


class Ranking(msgspec.Struct, frozen=True):
    """Hits of one leg, or of their fusion, without texts: ids and scores only, so that a hop stays small."""

    leg: str
    keys: np.ndarray  # int64[K], ChunkKey
    scores: np.ndarray  # float32[K], descending
    shards: np.ndarray  # int32[K], the shard that holds each
    ranks: dict[str, list[int]] = msgspec.field(
        default_factory=dict
    )  # after fusion: 1-based rank in each leg, 0 = absent
    limit: int = 0  # hits that were asked for: merging the shards' rankings cuts to it; 0: nothing is cut


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk with its text, as found. `source[start:end] == text` in code points of the document's text."""

    chunk_id: str  # "DOCUMENT_ID#ORDINAL"
    document_id: str
    title: str
    text: str
    start: int
    end: int
    score: float | None  # of the step that ordered last, documented there; None: scores were not asked for
    semantic: float | None = None  # semantic score to the question, see operators/corpus/measures.py; None: no vector
    ranks: dict[str, int] = msgspec.field(default_factory=dict)  # 1-based rank in each leg that found it
    metadata: Metadata = msgspec.field(default_factory=dict)
    owner: str = ""
    collections: tuple[str, ...] = ()
    edited: bool = False  # changed by itself: then start and end say what it stands for, and the text differs


class Partial(msgspec.Struct, frozen=True):
    """What an answer lacks: shards that did not answer in time, and the share of the documents in all others."""

    missing: tuple[int, ...]
    coverage: float  # 0 to 1


class Results(msgspec.Struct, frozen=True):
    """Passages in order, best first."""

    plan: Plan
    passages: tuple[Passage, ...]
    partial: Partial | None = None  # None: every shard answered


class TermStatistics(msgspec.Struct, frozen=True):
    """What BM25 needs to know of a whole corpus for one question, summed over shards: scores do not depend on them.

    Keyed by field: number of documents (Lucene's, that is: chunks) with the field, its tokens, and for each term of the
    question the documents that hold it and its occurrences.
    """

    document_count: dict[str, int]
    token_count: dict[str, int]
    document_frequency: dict[str, dict[str, int]]
    term_frequency: dict[str, dict[str, int]]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One document as read: its text is what offsets of its chunks count in, in code points."""

    id: str
    title: str
    text: str
    source: str = ""  # path or URL
    media_type: str = "text/plain"
    metadata: Metadata = msgspec.field(default_factory=dict)
    owner: str = ""  # who may change it; empty: nobody in particular
    collections: tuple[str, ...] = ()  # names of the groups of documents that it is in


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a document: `document.text[start:end] == text`.

    `context` is what a reader would need to place it (the headings above it); it is indexed and embedded with the
    text and is no part of it. `parent` is the ordinal of the chunk that contains this one, if any.
    """

    ordinal: int
    text: str
    start: int
    end: int
    context: str = ""
    parent: int | None = None
    tokens: int = 0  # as the embedder counts them; 0: not counted


class ChunkedDocument(msgspec.Struct, frozen=True):
    """A document and its chunks in order."""

    document: Document
    chunks: tuple[Chunk, ...]


class EmbeddedDocument(msgspec.Struct, frozen=True):
    """A chunked document with one vector a chunk: float32[N, D], rows in the order of the chunks."""

    document: Document
    chunks: tuple[Chunk, ...]
    vectors: np.ndarray


class Written(msgspec.Struct, frozen=True):
    """What became of one document: outcome is "added", "replaced" or "unchanged"."""

    document_id: str
    outcome: str
    chunks: int  # that were written: none of an unchanged document


class KnownVectors(msgspec.Struct, frozen=True):
    """Vectors that a corpus has already, by the hash of what was embedded: float32[N, D], one a hash."""

    hashes: list[bytes]
    vectors: np.ndarray


class Deleted(msgspec.Struct, frozen=True):
    """What a deletion removed, and the ids that were not there, in the given order."""

    documents: int
    chunks: int
    missing: tuple[str, ...] = ()


class Edit(msgspec.Struct, frozen=True):
    """A new text for one chunk of a document's version."""

    chunk_id: str
    version: int
    text: str
    tokens: int = 0


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Which documents or chunks to list: those that pass the filters, from `offset` on, `limit` at most.

    Documents come newest first, then by id; chunks by document id, then in their order.

    Raises:
        InvalidInput: `offset` or `limit` is no whole number from 0 to `MAX_LISTED`, or the prefix is no text.
    """

    filters: Filter = EVERYTHING
    scope_prefix: str = ""
    offset: int = 0
    limit: int = 100
    include_vectors: bool = False

    def __post_init__(self) -> None:
        for name, value in (("offset", self.offset), ("limit", self.limit)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_LISTED:
                raise InvalidInput(f"{name} is {value!r}; expected a whole number from 0 to {MAX_LISTED:,}")
        if not isinstance(self.scope_prefix, str) or HALF_CHARACTER.search(self.scope_prefix):
            raise InvalidInput(f"scope_prefix is {self.scope_prefix!r}; expected the beginning of an id, as Unicode")


class DocumentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored document without its text."""

    id: str
    title: str
    source: str
    media_type: str
    metadata: Metadata
    owner: str
    collections: tuple[str, ...]
    version: int  # 1 when it was added, one more at each replacement
    created: float  # seconds since 1970
    updated: float
    size_bytes: int  # of its text in UTF-8
    chunks: int
    tokens: int  # of its chunks; what overlaps is counted as often as it is stored


class DocumentPage(msgspec.Struct, frozen=True):
    """One page of a listing, and how many there are on all of them."""

    documents: list[DocumentInfo]
    total: int


class ChunkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored chunk."""

    chunk_id: str
    document_id: str
    title: str  # the document's
    version: int  # likewise
    ordinal: int
    parent: int | None
    start: int
    end: int
    context: str
    text: str
    tokens: int
    edited: bool  # changed by itself: then start and end say what it stands for, and the text differs
    metadata: Metadata
    owner: str
    collections: tuple[str, ...]
    vector: np.ndarray | None = None  # float32[D]


class ChunkPage(msgspec.Struct, frozen=True):
    """One page of a listing, and how many there are on all of them."""

    chunks: list[ChunkInfo]
    total: int


class Skipped(msgspec.Struct, frozen=True):
    """A file or line that was not ingested, and why, in words that tell what to do."""

    path: str
    reason: str


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of a chat prompt."""

    role: str  # "system", "user", "assistant"
    content: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What a generator reads. Source n of the text, counted from 1, is `sources[n - 1]`."""

    question: str
    messages: tuple[ChatMessage, ...]
    sources: tuple[Passage, ...]
    max_tokens: int
    template: str = ""  # name and hash of the template, for results
    prompt_tokens: int = 0  # counted with the generator's own tokenizer
    answer_schema: dict[str, Any] | None = None
    partial: Partial | None = None  # of the results that the sources come from


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the model counts them."""

    prompt_tokens: int
    completion_tokens: int


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A piece of generated text: a delta, never the text so far; never half a character."""

    text: str


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """The last thing that a generator says."""

    reason: str  # "stop", "length", "no_sources", "no_answer"
    usage: Usage
    model: str


Delta = Text | Finish


class Citation(msgspec.Struct, frozen=True, tag="citation"):
    """A span of the answer and the passage that supports it.

    `start` and `end` are code points of the answer text, end exclusive; `source` counts the answer's sources from 1.
    `support` is 0 to 1: the share of the span's content words that the passage holds.
    """

    start: int
    end: int
    source: int
    chunk_id: str
    document_id: str
    support: float


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """The whole answer, which ends every stream. `text` equals the concatenated deltas."""

    text: str
    citations: tuple[Citation, ...]
    unsupported: tuple[tuple[int, int], ...]  # spans of sentences that no source supports
    sources: tuple[Passage, ...]
    finish_reason: str
    usage: Usage
    model: str
    template: str = ""
    invented_markers: int = 0  # markers dropped because no such source exists
    partial: Partial | None = None  # None: every shard answered


Event = Text | Citation | Answer
