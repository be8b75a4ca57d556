"""A language model that vLLM runs: the same code for its CPU wheel and for GPUs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from engine.errors import InvalidInput
from operators.messages import ChatMessage, Delta, Prompt, Usage
from operators.models.language import LanguageModelStatistics, ModelFailed, Outcomes, Reply, prompt_too_long

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")

SHUTDOWN_S = 30.0  # until an engine process that does not stop by itself is killed


class VllmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which weights, how vLLM runs them, how replies are sampled.

    `model` is a folder in Hugging Face's layout, or a hub name where `offline` is off. `dtype`, `max_model_len`,
    `gpu_memory_utilization`, `max_num_seqs`, `enforce_eager` and `tensor_parallel_size` are vLLM's own settings; the
    window is `max_model_len`. `executor` "uni" runs the model in vLLM's engine process, with no worker process below
    it: 36 s to start on a busy CPU where the default took 52.

    `cpu_kv_cache_gib` and `cpu_threads` are read by the CPU build only; they, and `executor`, must reach its process as
    environment variables: see `vllm_environment`. `cpu_threads` should be 1 unless the cores are idle: OpenMP's threads
    spin for each other (64 tokens of SmolLM2 beside other work: 7 s on one thread, 102 s on two).
    """

    model: str
    dtype: str = "auto"
    max_model_len: int = 4096
    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 64
    enforce_eager: bool = False
    tensor_parallel_size: int = 1
    executor: str | None = None
    cpu_kv_cache_gib: int = 1
    cpu_threads: int = 1
    offline: bool = True
    temperature: float = 0.0
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidInput: One is out of range.
        """
        if not self.model:
            raise InvalidInput("model is empty, expected a folder in Hugging Face's layout, or a hub name")
        for name in ("max_model_len", "max_num_seqs", "tensor_parallel_size", "cpu_kv_cache_gib", "cpu_threads"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}, expected 1 or more")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidInput(f"gpu_memory_utilization is {self.gpu_memory_utilization}, expected a share, as 0.9")


def vllm_environment(config: VllmConfig) -> dict[str, str]:
    """What vLLM reads from the environment: the `environment` of the stage that opens it.

    vLLM reads them when it is imported and its engine process inherits them, so they must be set before.
    """
    # Without it the CPU build turns "uni" into "mp", to set thread counts for its workers: here they are set.
    uni = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if config.executor == "uni" else {}
    return uni | {
        "VLLM_CPU_KVCACHE_SPACE": str(config.cpu_kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding takes the same first cores in every process of a machine
        "OMP_NUM_THREADS": str(config.cpu_threads),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1" if config.offline else "0",
    }


class VllmEngine:
    """A language model in vLLM's engine process; see `LanguageModel` for the methods.

    Chat templates and token counts are computed in one worker thread of this process, with the model's tokenizer.

    Args:
        engine: The running engine.
        config: As it was opened.
    """

    def __init__(self, engine: AsyncLLM, config: VllmConfig) -> None:
        self._engine = engine
        self._config = config
        self.slots = config.max_num_seqs  # replies that decode together
        self._name = Path(config.model).name
        self._tokenizer = engine.get_tokenizer()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm-tokenizer")  # Rust's tokenizers allow no more
        self._outcomes = Outcomes()
        self._closing = False

    @classmethod
    def open(cls, config: VllmConfig) -> VllmEngine:
        """Load the weights and start the engine: half a minute on a CPU.

        Raises:
            InvalidInput: There is no such folder, or vLLM does not accept the model or the settings.
            ModelFailed: Its engine does not start: too little memory, damaged weights.
        """
        if config.offline and not (Path(config.model) / "config.json").is_file():
            raise InvalidInput(
                f"the model {config.model!r} is not a folder with a config.json; name one, or set offline to false"
            )
        try:
            return cls(_started(config), config)
        except ValueError as error:
            raise InvalidInput(f"vLLM does not accept the model {config.model!r} as configured: {error}") from error
        except (OSError, RuntimeError) as error:
            raise ModelFailed(f"vLLM cannot start the model {config.model!r}: {error}; see its log above") from error

    @property
    def context_tokens(self) -> int:
        """The window."""
        return self._config.max_model_len

    async def generate(self, prompt: Prompt) -> AsyncIterator[Delta]:
        """Stream the reply; see `LanguageModel.generate`."""
        reply = Reply(prompt, model=self._name, context_tokens=self.context_tokens)
        with self._outcomes.counting(reply):
            tokens = await self._prompt_tokens(list(prompt.messages))
            if len(tokens) >= self.context_tokens:
                raise prompt_too_long(len(tokens), self.context_tokens)
            ready = {"type": "token", "prompt_token_ids": tokens}  # an input that vLLM need not render any more
            outputs = self._engine.generate(ready, self._sampling(prompt), uuid.uuid4().hex)
            reason, generated = None, 0
            with _translated(self._name):
                async with aclosing(outputs):  # closing it aborts the request
                    async for output in outputs:
                        completion = output.outputs[0]
                        reason, generated = completion.finish_reason, generated + len(completion.token_ids)
                        if completion.text:
                            yield reply.add(completion.text)
            yield reply.finish(reason, Usage(len(tokens), generated))

    def _sampling(self, prompt: Prompt) -> SamplingParams:
        from vllm import SamplingParams  # noqa: PLC0415 - open() has paid for it
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # noqa: PLC0415 - as above

        schema, config = prompt.answer_schema, self._config
        return SamplingParams(
            max_tokens=prompt.max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=config.seed,
            output_kind=RequestOutputKind.DELTA,
            structured_outputs=None if schema is None else StructuredOutputsParams(json=schema),
        )

    async def count_tokens(self, texts: list[str]) -> list[int]:
        """Tokens of each text, by the model's tokenizer."""
        return await self._in_thread(lambda: [len(self._tokenizer.encode(t, add_special_tokens=False)) for t in texts])

    async def count_prompt(self, messages: list[ChatMessage]) -> int:
        """Tokens of the messages in the model's chat template."""
        return len(await self._prompt_tokens(messages))

    async def _prompt_tokens(self, messages: list[ChatMessage]) -> list[int]:
        turns = [msgspec.to_builtins(message) for message in messages]

        def tokens() -> list[int]:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            return list(self._tokenizer.encode(text, add_special_tokens=False))  # the template has written them

        return await self._in_thread(tokens)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._closing:
            raise ModelFailed(f"the model {self._name!r} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def statistics(self) -> LanguageModelStatistics:
        """Counters since the model was opened; open requests are those that vLLM itself still holds."""
        held = 0 if self._closing else len(self._engine.output_processor.request_states)
        return self._outcomes.statistics(self._name, self.context_tokens, open_requests=max(held, self._outcomes.open))

    async def aclose(self) -> None:
        """Abort every reply, stop the engine process."""
        if self._closing:
            return
        self._closing = True
        await self._engine.abort(list(self._engine.output_processor.request_states), internal=True)
        if self._engine.output_handler is not None:
            self._engine.output_handler.cancel()  # it would take the end of the engine process for a crash
        await asyncio.to_thread(self._engine.shutdown, SHUTDOWN_S)
        await asyncio.to_thread(self._thread.shutdown)
        del self._engine  # kept, its destructor would run, and fail, when the interpreter ends


def _started(config: VllmConfig) -> AsyncLLM:
    from vllm import AsyncEngineArgs  # noqa: PLC0415 - ten seconds, in the one process that runs the model
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 - as above

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=config.model,
            dtype=config.dtype,
            max_model_len=config.max_model_len,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_num_seqs=config.max_num_seqs,
            enforce_eager=config.enforce_eager,
            tensor_parallel_size=config.tensor_parallel_size,
            distributed_executor_backend=config.executor,
            seed=config.seed,
        )
    )


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Turn vLLM's errors into ours."""
    from vllm.exceptions import VLLMClientError, VLLMServerError  # noqa: PLC0415 - open() has paid for it

    try:
        yield
    except (VLLMClientError, ValueError) as error:
        raise InvalidInput(f"vLLM refuses the request: {error}") from error
    except VLLMServerError as error:
        raise ModelFailed(f"the model {name!r} failed in vLLM: {error}; see the engine's log") from error
