"""Configuration of the command line: one TOML file, checked whole before anything starts."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InvalidInput
from engine.policy import Policy
from engine.stage import Scaling
from graphs.generators import GeneratorConfig
from graphs.parts import RETRIEVAL, Profile
from operators.chunk import ChunkConfig
from operators.corpus.manifest import Corpus, CorpusConfig, IndexConfig
from operators.extract import ExtractConfig
from operators.feedback import FeedbackConfig
from operators.fuse import FuseConfig
from operators.messages import Settings
from operators.models.cross_encoder import CrossEncoderConfig
from operators.models.embedder import EmbedderConfig
from operators.models.llamacpp import LlamaCppConfig
from operators.models.openai_compatible import OpenAIConfig
from operators.models.vllm_engine import VllmConfig
from operators.prompt import PromptConfig, load_template
from serve.gateway.config import GatewayConfig

GENERATORS: dict[str, type[GeneratorConfig]] = {
    "extractive": ExtractConfig,
    "llamacpp": LlamaCppConfig,
    "openai": OpenAIConfig,
    "vllm": VllmConfig,
}


class PromptSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How prompts are written; templates are packaged names or paths. See PromptConfig."""

    context_window: int = 4096
    template: str = "answer.v1"
    schema_template: str = "answer_json.v1"


class ScalingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of each stage on Ray, such as `[scaling.generator]` with `least = 1` and `most = 4`; one without it."""

    shard: Scaling | None = None
    embedder: Scaling | None = None
    reranker: Scaling | None = None
    generator: Scaling | None = None


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sections of a configuration file; every key has a default."""

    corpus: IndexConfig = msgspec.field(default_factory=IndexConfig)  # of a new corpus; one that exists keeps its own
    embedder: EmbedderConfig = msgspec.field(default_factory=EmbedderConfig)
    chunks: ChunkConfig = msgspec.field(default_factory=ChunkConfig)
    fuse: FuseConfig = msgspec.field(default_factory=FuseConfig)
    feedback: FeedbackConfig = msgspec.field(default_factory=FeedbackConfig)
    search: Settings = msgspec.field(default_factory=Settings)
    prompt: PromptSettings = msgspec.field(default_factory=PromptSettings)
    retrieval: Policy = RETRIEVAL
    reranker: CrossEncoderConfig | None = None
    generator: dict[str, Any] = msgspec.field(default_factory=dict)  # "kind" and that kind's own keys
    gpus: float = 0.0
    scaling: ScalingSettings = msgspec.field(default_factory=ScalingSettings)
    serve: GatewayConfig = msgspec.field(default_factory=GatewayConfig)

    def profile(self, corpus: Corpus) -> Profile:
        """What the graphs run on, over `corpus`.

        Raises:
            InvalidInput: A template or the generator's section is wrong.
        """
        prompt = PromptConfig(
            context_window=self.prompt.context_window,
            template=load_template(self.prompt.template),
            schema_template=load_template(self.prompt.schema_template),
        )
        return Profile(
            corpus,
            embedder=self.embedder,
            chunks=self.chunks,
            fuse=self.fuse,
            feedback=self.feedback,
            retrieval=self.retrieval,
            reranker=self.reranker,
            generator=generator_config(self.generator),
            prompt=prompt,
            gpus=self.gpus,
            scaling={name: one for name in self.scaling.__struct_fields__ if (one := getattr(self.scaling, name))},
        )

    def corpus_config(self, embedder: str, dimension: int) -> CorpusConfig:
        """The configuration of a new corpus for an embedder."""
        chunking = msgspec.json.encode(self.chunks).decode()
        fields = msgspec.structs.asdict(self.corpus)
        return CorpusConfig(embedder=embedder, dimension=dimension, chunking=chunking, **fields)


def generator_config(section: dict[str, Any]) -> GeneratorConfig:
    """The configuration of the generator that a section names by its key `kind`.

    Raises:
        InvalidInput: There is no such kind, or a key or value that it does not take.
    """
    kind = section.get("kind", "extractive")
    if kind not in GENERATORS:
        raise InvalidInput(f"generator.kind is {kind!r}; expected one of {', '.join(GENERATORS)}")
    rest = {key: value for key, value in section.items() if key != "kind"}
    config: GeneratorConfig = _converted(rest, GENERATORS[kind], f"the generator {kind!r}")
    return config


def read_configuration(path: str | None) -> Configuration:
    """The configuration in a file, or in the one that HEADRACE_CONFIG names; the defaults without either.

    Raises:
        InvalidInput: The file cannot be read, is no TOML, or has a key or value that there is not.
    """
    path = path or os.environ.get("HEADRACE_CONFIG")
    if not path:
        return Configuration()
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the configuration file {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"the configuration file {path} is no TOML: {error}") from error
    configuration: Configuration = _converted(raw, Configuration, path)
    generator_config(configuration.generator)  # a wrong key is told now, not when the first question comes
    return configuration


def _converted(raw: dict[str, Any], kind: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, InvalidInput):
            raise InvalidInput(f"{where}: {cause}") from error
        raise InvalidInput(f"{where}: {_advice(str(error), kind)}") from error


def _advice(text: str, kind: type[Any]) -> str:
    """Msgspec's message, with the keys that there are when one is unknown."""
    if "unknown field" not in text:
        return text
    section = kind
    if "$." in text:
        for name in text.rpartition("$.")[2].strip("`").split("."):
            section = next((f.type for f in msgspec.structs.fields(section) if f.name == name), section)
            section = next(
                (a for a in getattr(section, "__args__", (section,)) if hasattr(a, "__struct_fields__")), section
            )
    return f"{text}; the keys there are: {', '.join(getattr(section, '__struct_fields__', ()))}"


def corpus_directory(given: str | None) -> Path:
    """Where the corpus is: what was given, HEADRACE_CORPUS, or ~/.headrace/corpus."""
    return Path(given or os.environ.get("HEADRACE_CORPUS") or Path.home() / ".headrace" / "corpus").expanduser()
