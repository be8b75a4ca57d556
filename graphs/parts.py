"""The parts that the ready-made graphs are drawn with: stages, and the steps on them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.policy import Policy
from engine.stage import Resources, Scaling, Stage
from engine.step import Step, step
from engine.stream import Stream
from graphs.generators import AGAIN, Count, Generate, GeneratorConfig, generator_steps
from operators.chunk import ChunkConfig
from operators.chunking import Chunker
from operators.cite import cite
from operators.corpus.manifest import Corpus, open_corpus
from operators.corpus.merge import merge_passages, merge_rankings, merge_statistics, merge_vectors
from operators.corpus.shard import Shard
from operators.extract import ExtractConfig
from operators.feedback import FeedbackConfig, refine, seeds
from operators.fuse import FuseConfig, Fusion
from operators.messages import (
    Delta,
    Event,
    Passage,
    Plan,
    Prompt,
    Question,
    Ranking,
    Results,
    TermStatistics,
)
from operators.models.cross_encoder import CrossEncoderConfig
from operators.models.embedder import Embedder, EmbedderConfig
from operators.models.embedder_files import embedder_identity
from operators.plan_question import PlanConfig, plan_question
from operators.prompt import PromptConfig, build_prompt, prompt_texts
from operators.rerank import Reranker
from operators.select import as_ranked, cut_to_candidates, cut_to_limit, owners_of_fetch, owners_of_plan, page, results

RETRIEVAL = Policy(idempotent=True, hedged=0.05, time=0.4, coverage=0.75)
"""With several shards: three quarters of the documents will do when a shard died or 40 % of the time is spent."""


@dataclass(frozen=True)
class Profile:
    """What the ready-made graphs run on; every field but the corpus has a default that needs no download and no GPU.

    `reranker` is None in the offline profile: the packages carry no cross-encoder's weights, so the step is absent.
    """

    corpus: Corpus
    embedder: EmbedderConfig = field(default_factory=EmbedderConfig)
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
    fuse: FuseConfig = field(default_factory=FuseConfig)
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    retrieval: Policy = RETRIEVAL
    reranker: CrossEncoderConfig | None = None
    generator: GeneratorConfig = field(default_factory=ExtractConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    gpus: float = 0.0  # of one reranker and one generator replica, on Ray
    scaling: Mapping[str, Scaling] = field(default_factory=dict)  # by name of a stage, on Ray


def asks_for_dense(plan: Plan, *_: Any) -> bool:
    """Whether the plan has the dense leg."""
    return plan.leg("dense") is not None


def asks_for_lexical(plan: Plan, *_: Any) -> bool:
    """Whether the plan has the lexical leg."""
    return plan.leg("lexical") is not None


def empty(leg: str) -> Ranking:
    """A ranking without hits."""
    return Ranking(leg, np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int32))


_best = step(cut_to_limit, name="best")
_candidates = step(cut_to_candidates, name="candidates")
_as_ranked = step(as_ranked)
_results = step(results)
_page = step(page)
_cite = step(cite)


class Parts:
    """Stages and steps of one profile; graphs drawn with the same Parts share their stages.

    Args:
        profile: Models, corpus and settings.
        writable: Whether the shards take documents; one process at a time may.
    """

    def __init__(self, profile: Profile, *, writable: bool = False) -> None:
        self.profile = profile
        directory, shards = str(profile.corpus.directory), profile.corpus.config.shards
        self.chunker = Stage("chunker", partial(Chunker.open, profile.chunks, profile.embedder))
        # A JVM must not share a process with torch: each shard has one of its own, for both of its legs.
        self.shards = Stage(
            "shard",
            partial(Shard.open, directory, writable=writable),
            shards=shards,
            isolated=True,
            scaling=None if writable else profile.scaling.get("shard"),  # one process at a time may write
        )

    @classmethod
    def of(cls, source: Parts | Profile | Corpus | str | Path) -> Parts:
        """Parts from whatever names a corpus; a path stands for the offline profile of the corpus there."""
        if isinstance(source, Parts):
            return source
        if isinstance(source, (str, Path)):
            source = open_corpus(source)
        return cls(source if isinstance(source, Profile) else Profile(source))

    @cached_property
    def embedder(self) -> Stage[Embedder]:
        """The embedder's stage; drawing a graph that uses it checks that the corpus was made with this model."""
        self.profile.corpus.require_embedder(*embedder_identity(self.profile.embedder))
        scaling = self.profile.scaling.get("embedder")
        return Stage("embedder", partial(Embedder.open, self.profile.embedder), scaling=scaling)

    def answering_with(self, generator: GeneratorConfig) -> Parts:
        """These parts with another generator; every other stage is shared, and started once in one session."""
        _ = self.embedder  # made before the copy, so that both have the same one
        if self.profile.reranker is not None:
            _ = self._rerank
        twin = copy.copy(self)
        twin.__dict__.pop("_generator", None)
        twin.profile = replace(self.profile, generator=generator)
        return twin

    @cached_property
    def _plan(self) -> Step[..., Plan]:
        threshold = self.profile.corpus.config.score_threshold
        config = PlanConfig(dense_languages=self.profile.embedder.reads, score_threshold=threshold)
        return step(partial(plan_question, config=config), name="planner")

    # Retrieval

    def retrieve(self, plan: Plan) -> Results:
        """Draw the retrieval: both legs, fusion, texts of the best, and the cross-encoder where there is one."""
        terms = None if self.profile.corpus.config.shards == 1 else self._terms(plan)
        vector, lexical = self._embed(plan), self._lexical(plan, terms)
        hits = self._fuse(plan, self._dense(plan, vector), lexical)
        if self.profile.feedback.passages:
            moved = self._refine(vector, self._vectors(plan, self._seeds(plan, hits)))
            hits = self._fuse(plan, self._dense(plan, moved), lexical)
        reranked = self.profile.reranker is not None
        best = _candidates(plan, hits) if reranked else _best(plan, hits)
        passages = self._fetch(plan, vector, best)
        if self.profile.corpus.config.shards > 1:
            passages = _as_ranked(best, passages)
        found = _results(plan, passages)
        return _page(self._rerank(plan, found) if reranked else found)

    @property
    def _policy(self) -> Policy:
        return self.profile.retrieval

    def planner(self, question: Question) -> Plan:
        """Draw the planner."""
        return self._plan(question)

    def cite(self, prompt: Prompt, deltas: Stream[Delta]) -> Stream[Event]:
        """Draw the check of citations; without sources it asks no model and says so."""
        return _cite(prompt, deltas)

    @cached_property
    def _embed(self) -> Step[[Plan], np.ndarray]:
        nothing = np.zeros(self.profile.corpus.config.dimension, np.float32)
        return self.embedder.step(Embedder.embed_question, name="embed", policy=AGAIN).when(
            asks_for_dense, otherwise=nothing
        )

    @cached_property
    def _dense(self) -> Step[[Plan, np.ndarray], Ranking]:
        return self.shards.gather(Shard.dense, merge_rankings, policy=self._policy).when(
            asks_for_dense, otherwise=empty("dense")
        )

    @cached_property
    def _terms(self) -> Step[[Plan], TermStatistics]:
        nothing = TermStatistics({}, {}, {}, {})
        return self.shards.gather(Shard.term_statistics, merge_statistics, name="terms", policy=self._policy).when(
            asks_for_lexical, otherwise=nothing
        )

    @cached_property
    def _lexical(self) -> Step[[Plan, TermStatistics | None], Ranking]:
        return self.shards.gather(Shard.lexical, merge_rankings, policy=self._policy).when(
            asks_for_lexical, otherwise=empty("lexical")
        )

    @cached_property
    def _fuse(self) -> Step[..., Ranking]:
        return step(Fusion(self.profile.fuse), name="fuse")

    @cached_property
    def _seeds(self) -> Step[..., Ranking]:
        return step(partial(seeds, config=self.profile.feedback))

    @cached_property
    def _vectors(self) -> Step[[Plan, Ranking], np.ndarray]:
        nothing = np.zeros((0, self.profile.corpus.config.dimension), np.float32)
        return self.shards.gather(Shard.vectors, merge_vectors, split=owners_of_plan, policy=self._policy).when(
            asks_for_dense, otherwise=nothing
        )

    @cached_property
    def _refine(self) -> Step[..., np.ndarray]:
        return step(partial(refine, config=self.profile.feedback))

    @cached_property
    def _fetch(self) -> Step[[Plan, np.ndarray, Ranking], list[Passage]]:
        return self.shards.gather(Shard.fetch, merge_passages, split=owners_of_fetch, policy=self._policy)

    @cached_property
    def _rerank(self) -> Step[[Plan, Results], Results]:
        if self.profile.reranker is None:
            raise ValueError("this profile has no reranker; retrieve() leaves the step out")
        stage = Stage(
            "reranker",
            partial(Reranker.open, self.profile.reranker),
            resources=Resources(gpus=self.profile.gpus),
            scaling=self.profile.scaling.get("reranker"),
        )
        return stage.step(Reranker.rerank, policy=AGAIN)

    # Answers

    @cached_property
    def _generator(self) -> tuple[Generate, Count]:
        """How the model of the profile answers, and how it counts tokens."""
        scaling = self.profile.scaling.get("generator")
        return generator_steps(self.profile.generator, gpus=self.profile.gpus, scaling=scaling)

    def prompt(self, plan: Plan, found: Results) -> Prompt:
        """Draw the writing of the prompt; its length is counted with the model's own tokenizer."""
        texts = step(partial(prompt_texts, config=self.profile.prompt), name="texts")
        write = step(partial(build_prompt, config=self.profile.prompt), name="prompt")
        return write(plan, found, self._generator[1](texts(plan, found)))

    def generate(self, prompt: Prompt) -> Stream[Delta]:
        """Draw the generator."""
        return self._generator[0](prompt)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the graph's picture would miss, and why it is not there."""
        if self.profile.reranker is None:
            return ("no rerank step: the profile names no cross-encoder, so the fused order stands",)
        return ()
