"""What a session is opened with, and what one question may change; both are checked when they are written."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, Literal

import msgspec

from engine.errors import InvalidInput
from graphs.generators import GeneratorConfig
from graphs.parts import Profile
from operators.chunk import ChunkConfig
from operators.corpus.manifest import MAX_SCORE, Corpus, IndexConfig
from operators.extract import ExtractConfig
from operators.filter_parse import parse_filter
from operators.messages import Settings
from operators.models.cross_encoder import CrossEncoderConfig
from operators.models.embedder import EmbedderConfig
from operators.models.llamacpp import LlamaCppConfig
from operators.models.model_files import PACKAGED, model_folder
from operators.models.vllm_engine import VllmConfig
from operators.multi_query import DEFAULT_VARIANTS, clamp_count
from operators.plan_question import MAX_LIMIT
from operators.prompt import PromptConfig, Template, load_template
from serve.checks import check_kind, check_seconds, check_share, check_text, check_whole

CANDIDATES: Final = 100  # hits of each leg before fusion
EVERY_SCORE: Final = -MAX_SCORE  # a threshold that every passage reaches
CHUNK_SIZE: Final = 512  # tokens, where the embedder reads so many
HEADROOM: Final = 56  # tokens of the embedder's window for title and headings, which are embedded with each chunk
INSTRUCTIONS: Final = 1024  # tokens of the model's window beside sources and answer: instructions and question
OVERLAP_SHARE: Final = 8  # an overlap that is not given is an eighth of the size: 64 of 512

NO_LANGUAGE_MODEL: Final = (
    'open it with llm_model_id (the path of a GGUF file, or "packaged") or with a generator such as OpenAIConfig'
)
"""How a session gets a language model, for messages."""


class RagRetrievalOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one question asks for; what is None is as the session says, else as the defaults say.

    Args:
        top_k: Passages at most; 0 is as None.
        score_threshold: Least semantic score, 0 to 1; 0.0 lets every passage through, whatever the session says.
        scope_prefix: Only documents whose id begins so.
        filters: Only documents whose metadata pass; see operators/filter_parse.py.
        enable_multi_query: Whether the language model rewords the question, and all wordings are searched for.
        multi_query_count: Other wordings at most: more than 8 are 8, and 0 or less are 3.
        max_output_tokens: Longest answer.
        timeout_s: Seconds until the question is given up; None never.

    Raises:
        InvalidInput: A value is of another type or out of its range, or the filter is malformed.
    """

    top_k: int | None = None
    score_threshold: float | None = None
    scope_prefix: str = ""
    filters: dict[str, Any] = msgspec.field(default_factory=dict)
    enable_multi_query: bool | None = None
    multi_query_count: int | None = None
    max_output_tokens: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        check_whole("top_k", self.top_k, 0, MAX_LIMIT)
        check_share("score_threshold", self.score_threshold)
        check_text("scope_prefix", self.scope_prefix)
        parse_filter(self.filters)
        check_kind("enable_multi_query", self.enable_multi_query, bool | None, "True, False or None")
        check_whole("multi_query_count", self.multi_query_count)
        check_whole("max_output_tokens", self.max_output_tokens, 1)
        check_seconds("timeout_s", self.timeout_s)


class RagConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session runs on; every field has a default that needs no download and no GPU.

    Without `llm_model_id` and `generator` a session only retrieves: `query` is refused then.

    Args:
        embedding_model_id: "packaged" (all-MiniLM-L6-v2), a folder, or a hub name.
        llm_model_id: The path of a GGUF file, or "packaged" (SmolLM2-135M, a toy); empty for none.
        generator: In place of llm_model_id: "extractive" answers with sentences of the sources and needs no model; or
            the configuration of any generator, such as OpenAIConfig.
        embedding_dimension: What the embedder's vectors must have; None accepts what they have.
        top_k: Passages that a search returns and an answer may draw on.
        score_threshold: Least semantic score of a passage, 0 to 1; 0 lets every one through, None those that the
            corpus's own threshold does (`index`; by default every one). Cosines of the packaged embedder rarely exceed
            0.5 for a question and its answer.
        chunk_size: Longest chunk in tokens of the embedder; None: 512, or what the embedder reads whole (200 for the
            packaged one). Of a longer chunk the embedder does not read the end.
        chunk_overlap: Tokens that neighbouring chunks may share, below chunk_size; None: an eighth of it. 0 is none.
        max_context_tokens: Most tokens of the sources that an answer draws on, as their token_count tells. Sources are
            taken whole; one that does not fit is left out, and the next is tried.
        prompt_template: The user's message to the model; holds {context} and {query}, which are replaced in one pass:
            braces in a document mean themselves. Empty: the packaged one.
        rerank_results: Whether a cross-encoder orders what was found.
        reranker: That cross-encoder.
        enable_multi_query: See RagRetrievalOptions.
        multi_query_count: See RagRetrievalOptions.
        max_output_tokens: Longest answer.
        index: How a new corpus is partitioned and indexed; one that exists keeps its own.

    Raises:
        InvalidInput: A value is of another type or out of its range, or two do not go together.
    """

    embedding_model_id: str = PACKAGED
    llm_model_id: str = ""
    generator: Literal["extractive"] | GeneratorConfig | None = None
    embedding_dimension: int | None = None
    top_k: int = 5
    score_threshold: float | None = None
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    max_context_tokens: int = 2048
    prompt_template: str = ""
    rerank_results: bool = False
    reranker: CrossEncoderConfig | None = None
    enable_multi_query: bool = False
    multi_query_count: int = DEFAULT_VARIANTS
    max_output_tokens: int = 512
    index: IndexConfig = msgspec.field(default_factory=IndexConfig)

    def __post_init__(self) -> None:
        for name, high in (("top_k", MAX_LIMIT), ("max_context_tokens", None), ("max_output_tokens", None)):
            check_whole(name, getattr(self, name), 1, high, optional=False)
        check_whole("embedding_dimension", self.embedding_dimension, 1)
        check_share("score_threshold", self.score_threshold)
        check_whole("multi_query_count", self.multi_query_count, optional=False)
        _check_chunks(self.chunk_size, self.chunk_overlap)
        for name in ("embedding_model_id", "llm_model_id", "prompt_template"):
            check_text(name, getattr(self, name))
        for name in ("rerank_results", "enable_multi_query"):
            check_kind(name, getattr(self, name), bool, "True or False")
        check_kind("index", self.index, IndexConfig, "an IndexConfig")
        check_kind("reranker", self.reranker, CrossEncoderConfig | None, "a CrossEncoderConfig or None")
        _ = self.embedder, self.template  # refused now when they are wrong, not when the session opens
        self._check_models()

    def _check_models(self) -> None:
        if self.generator != "extractive" and not isinstance(self.generator, GeneratorConfig | None):
            raise InvalidInput(
                f'generator is {self.generator!r}; expected "extractive" or a generator\'s configuration; '
                "the path of a model is llm_model_id"
            )
        if self.llm_model_id and self.generator is not None:
            raise InvalidInput(f"llm_model_id {self.llm_model_id!r} and generator both say who answers; give one")
        if self.rerank_results and self.reranker is None:
            raise InvalidInput(
                "rerank_results needs a cross-encoder, and none is configured: headrace installs no weights of one; "
                "set reranker=CrossEncoderConfig(model=...) or leave rerank_results out"
            )
        if self.enable_multi_query:
            self.require_language_model("enable_multi_query")

    @property
    def embedder(self) -> EmbedderConfig:
        """The embedder's configuration."""
        return EmbedderConfig(model=self.embedding_model_id)

    @property
    def answering(self) -> GeneratorConfig | None:
        """Who answers; None in a session that only retrieves."""
        if self.generator == "extractive":
            return ExtractConfig()
        if self.generator is not None:
            return self.generator
        if not self.llm_model_id:
            return None
        window = self.max_context_tokens + self.max_output_tokens + INSTRUCTIONS
        return LlamaCppConfig(model=self.llm_model_id, context_tokens=window)

    @property
    def has_language_model(self) -> bool:
        """Whether who answers can write; the extractive generator cannot."""
        return self.answering is not None and not isinstance(self.answering, ExtractConfig)

    def require_language_model(self, what: str) -> None:
        """Refuses what the extractive generator cannot do, nor a session that only retrieves.

        Raises:
            InvalidInput: There is no language model.
        """
        if not self.has_language_model:
            raise InvalidInput(f"{what} needs a language model, and this session has none; {NO_LANGUAGE_MODEL}")

    @property
    def template(self) -> Template:
        """The prompt's texts."""
        packaged = load_template("answer.v1")
        if not self.prompt_template:
            return packaged
        digest = hashlib.sha256(self.prompt_template.encode()).hexdigest()[:12]
        bare = Template(name="prompt_template", hash=digest, system="", user=self.prompt_template)
        return msgspec.structs.replace(bare, system=packaged.system)

    def chunks(self) -> ChunkConfig:
        """How documents are cut; reads the embedder's window off its files when no size is given.

        Raises:
            InvalidInput: There is no such embedder; or the overlap does not fit the size that follows from it.
        """
        size = self.chunk_size or min(CHUNK_SIZE, max(1, embedder_window(self.embedding_model_id) - HEADROOM))
        overlap = size // OVERLAP_SHARE if self.chunk_overlap is None else self.chunk_overlap
        _check_chunks(size, overlap)
        return ChunkConfig(size=size, overlap=overlap)

    def profile(self, corpus: Corpus) -> Profile:
        """What the graphs run on, over `corpus`."""
        generator = self.answering or ExtractConfig()
        return Profile(
            corpus,
            embedder=self.embedder,
            chunks=self.chunks(),
            reranker=self.reranker if self.rerank_results else None,
            generator=generator,
            prompt=PromptConfig(context_window=self._window(generator), template=self.template),
        )

    def _window(self, generator: GeneratorConfig) -> int:
        if isinstance(generator, ExtractConfig):
            return self.max_context_tokens + self.max_output_tokens + INSTRUCTIONS
        return generator.max_model_len if isinstance(generator, VllmConfig) else generator.context_tokens

    def settings(self, options: RagRetrievalOptions) -> Settings:
        """How a question is answered: as its options say, else as this session says."""
        top_k = options.top_k or self.top_k
        threshold = self.score_threshold if options.score_threshold is None else options.score_threshold
        return Settings(
            limit=top_k,
            candidates=max(CANDIDATES, top_k),
            filters=options.filters,
            scope_prefix=options.scope_prefix,
            score_threshold=EVERY_SCORE if threshold == 0 else threshold,
            max_answer_tokens=options.max_output_tokens or self.max_output_tokens,
        )

    def variants(self, options: RagRetrievalOptions) -> int:
        """How many other wordings of a question are asked for; 0: none.

        Raises:
            InvalidInput: Some are, and there is no language model.
        """
        asked = self.enable_multi_query if options.enable_multi_query is None else options.enable_multi_query
        if not asked:
            return 0
        self.require_language_model("enable_multi_query")
        return clamp_count(self.multi_query_count if options.multi_query_count is None else options.multi_query_count)


def embedder_window(model: str) -> int:
    """Tokens of a text that an embedder reads, as its files tell; 512 where they do not.

    Raises:
        InvalidInput: There is no such model.
    """
    path = model_folder(model) / "sentence_bert_config.json"
    told = json.loads(path.read_text(encoding="utf-8")).get("max_seq_length") if path.is_file() else None
    return told or 512


def _check_chunks(size: int | None, overlap: int | None) -> None:
    check_whole("chunk_size", size, 1)
    check_whole("chunk_overlap", overlap, 0)
    if size is not None and overlap is not None and overlap >= size:
        raise InvalidInput(
            f"chunk_overlap is {overlap} and chunk_size {size}; the overlap must be less than the size: lower it, or "
            "leave it out for an eighth of the size"
        )
