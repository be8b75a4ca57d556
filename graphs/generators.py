"""How each kind of generator becomes steps: one that answers and one that counts its tokens."""

from __future__ import annotations

from functools import partial
from typing import cast

from engine.policy import Policy
from engine.stage import Resources, Scaling, Stage
from engine.step import Step, step
from engine.stream import Stream
from operators.extract import ExtractConfig, extract
from operators.extract import count_tokens as count_words
from operators.messages import Delta, Prompt
from operators.models.llamacpp import LlamaCpp, LlamaCppConfig
from operators.models.openai_compatible import OpenAICompatible, OpenAIConfig
from operators.models.vllm_engine import VllmConfig, VllmEngine, vllm_environment

GeneratorConfig = ExtractConfig | LlamaCppConfig | OpenAIConfig | VllmConfig

AGAIN = Policy(idempotent=True)
"""Of whoever gives the same answer again; of a stream as long as nothing was said."""

Generate = Step[[Prompt], Stream[Delta]]
Count = Step[[list[str]], list[int]]


def generator_steps(
    config: GeneratorConfig, *, gpus: float = 0.0, scaling: Scaling | None = None
) -> tuple[Generate, Count]:
    """The steps `generate` and `count` of a generator.

    Args:
        config: Its kind and settings.
        gpus: What one replica holds on Ray, for the kinds that use one.
        scaling: How many replicas there are on Ray.
    """
    if isinstance(config, ExtractConfig):
        answer = step(partial(extract, config=config), name="generate")
        return cast("Generate", answer), step(count_words, name="count")
    if isinstance(config, LlamaCppConfig):
        llama = Stage("generator", partial(LlamaCpp.open, config), resources=Resources(gpus=gpus), scaling=scaling)
        return llama.step(LlamaCpp.generate, live=True, policy=AGAIN), llama.step(
            LlamaCpp.count_tokens, name="count", policy=AGAIN
        )
    if isinstance(config, OpenAIConfig):
        remote = Stage("generator", partial(OpenAICompatible.open, config), scaling=scaling)
        return remote.step(OpenAICompatible.generate, live=True, policy=AGAIN), remote.step(
            OpenAICompatible.count_tokens, name="count"
        )
    environment = vllm_environment(config)
    vllm = Stage(
        "generator",
        partial(VllmEngine.open, config),
        resources=Resources(cpus=1, gpus=gpus),
        scaling=scaling,
        environment=environment,
        isolated=True,  # it needs its environment before it is imported
    )
    return vllm.step(VllmEngine.generate, live=True, policy=AGAIN), vllm.step(
        VllmEngine.count_tokens, name="count", policy=AGAIN
    )
