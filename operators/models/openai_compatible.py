"""A language model behind any endpoint that speaks OpenAI's chat completions: vLLM, llama.cpp, TGI, hosted ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from engine.errors import HeadraceError, InvalidInput, QueueFull
from operators.messages import ChatMessage, Delta, Prompt, Usage
from operators.models.chat_completions import (
    ChatChunk,
    ChatReply,
    ErrorBody,
    SseReader,
    chat_chunk,
    chat_request,
    failure,
)
from operators.models.language import LanguageModelStatistics, ModelFailed, Outcomes

if TYPE_CHECKING:
    import httpx

ERROR_BYTES = 1 << 16  # the part of an error's body that is read
TEXTS_AT_ONCE = 8  # /tokenize calls in flight: one a text
MESSAGE_TOKENS = 4  # what a chat template adds to a message, in an estimate
OK = 200
TOO_MANY_REQUESTS = 429


class OpenAIConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which endpoint, which model, how it samples.

    `base_url` ends before `/chat/completions` ("https://host/v1"). `context_tokens` is said here because the protocol
    does not tell it. `timeout_s` bounds silence, not the whole reply: connecting, and the wait for each next byte.
    `extra` is merged into the request's body, for what one endpoint alone knows (`chat_template_kwargs`).
    """

    base_url: str
    model: str
    api_key: str | None = None
    context_tokens: int = 8192
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    timeout_s: float = 60.0
    max_connections: int = 100
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # OpenAI's newer models: the second
    extra: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidInput: One is out of range.
        """
        if not _is_http_url(self.base_url):
            raise InvalidInput(f"base_url is {self.base_url!r}, expected http(s)://HOST/..., such as https://host/v1")
        if not self.model:
            raise InvalidInput("model is empty; name the model as the endpoint lists it under /models")
        for name in ("context_tokens", "max_connections"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}, expected 1 or more")
        if not self.timeout_s > 0:
            raise InvalidInput(f"timeout_s is {self.timeout_s}, expected seconds above 0")

    def __repr__(self) -> str:
        """Without the key: this text goes into pictures, hashes and logs."""
        return f"OpenAIConfig({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Fields, the key masked."""
        shown = {"api_key": "***" if self.api_key else None}
        return [(name, shown.get(name, getattr(self, name))) for name in self.__struct_fields__]


class _Counts(msgspec.Struct):
    """What the counting routes of vLLM and llama.cpp answer."""

    count: int = 0
    input_tokens: int = 0
    tokens: list[Any] = []


_counts = msgspec.json.Decoder(_Counts)


class OpenAICompatible:
    """A language model behind an endpoint; see `LanguageModel` for the methods.

    `count_tokens` asks the endpoint's `/tokenize` (vLLM and llama.cpp have it). Where there is none it estimates one
    token per three bytes of UTF-8, rounded up: a third too many for English, about right for Chinese, so that prompts
    built with it fit; `statistics().estimated_counts` then says so.

    Args:
        config: Endpoint, model, sampling.
        new_client: Makes an HTTP client.
    """

    def __init__(self, config: OpenAIConfig, new_client: Callable[[], httpx.AsyncClient]) -> None:
        self._config = config
        self._new_client = new_client
        self._base = config.base_url.rstrip("/")
        self._root = self._base.removesuffix("/v1")
        self._places = asyncio.Semaphore(config.max_connections)
        self._clients: set[httpx.AsyncClient] = set()
        self._outcomes = Outcomes()
        self._missing: set[str] = set()  # counting routes that this endpoint turned out not to have
        self._closed = False

    @classmethod
    def open(cls, config: OpenAIConfig) -> OpenAICompatible:
        """Prepare to connect; the endpoint is first spoken to when something is asked of it."""
        import httpx  # noqa: PLC0415 - 0.3 s that only a model behind an endpoint pays

        new_client = partial(
            httpx.AsyncClient,
            headers={"Content-Type": "application/json"} | bearer(config.api_key),
            timeout=config.timeout_s,
            verify=httpx.create_ssl_context(trust_env=False),  # made once: 50 ms
            trust_env=False,  # environment variables are read in serve/settings.py only
        )
        return cls(config, new_client)

    @property
    def context_tokens(self) -> int:
        """The window that the configuration states."""
        return self._config.context_tokens

    async def generate(self, prompt: Prompt) -> AsyncIterator[Delta]:
        """Stream the reply; closing the generator closes the connection, which is how an endpoint learns to stop."""
        reply = ChatReply(prompt, model=self._config.model, context_tokens=self.context_tokens)
        with self._outcomes.counting(reply):
            async with aclosing(self._chunks(prompt)) as chunks:
                async for chunk in chunks:
                    if delta := reply.read(chunk):
                        yield delta
            if reply.reason and not reply.usage:
                reply.usage = await self._counted(prompt, reply.text)
            yield reply.finish(reply.reason, reply.usage)

    async def _chunks(self, prompt: Prompt) -> AsyncGenerator[ChatChunk, None]:
        config = self._config
        body = chat_request(prompt, temperature=config.temperature, top_p=config.top_p, seed=config.seed)
        body |= {"model": config.model, config.max_tokens_field: prompt.max_tokens} | config.extra
        url, content, reader = f"{self._base}/chat/completions", msgspec.json.encode(body), SseReader()
        async with self._connected() as client, client.stream("POST", url, content=content) as response:
            if response.status_code != OK:
                raise await self._refusal(response)
            async with aclosing(_pieces(response)) as pieces:
                async for piece in pieces:
                    for event in reader.feed(piece):
                        if event == b"[DONE]":
                            return
                        yield self._decoded(event)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[httpx.AsyncClient]:
        """An HTTP client for one call, whose errors become ours.

        One a call, since a client that is shared leaks: of a request that is cancelled before its connection is used,
        httpcore 1.0 keeps the connection's place for ever, and after `max_connections` of them the pool is full. It
        costs about a millisecond and a handshake, in front of a reply that takes seconds.
        """
        if self._closed:
            raise ModelFailed(f"the model {self._config.model!r} is closed")
        async with self._places:
            client = self._new_client()
            self._clients.add(client)
            try:
                with self._translated():
                    yield client
            finally:
                self._clients.discard(client)
                await client.aclose()

    def _decoded(self, event: bytes) -> ChatChunk:
        try:
            return chat_chunk.decode(event)
        except msgspec.DecodeError as error:
            shown = event[:80].decode(errors="replace")
            raise ModelFailed(f"{self._base} sent an event that is no chat completion chunk: {shown!r}") from error

    async def _refusal(self, response: httpx.Response) -> HeadraceError:
        """The error of an answer that is not 200, from at most the beginning of its body."""
        body = bytearray()
        async with aclosing(_pieces(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > ERROR_BYTES:
                    break
        try:
            error = chat_chunk.decode(body).error
        except msgspec.DecodeError:
            error = None
        error = error or ErrorBody(message=body[:300].decode(errors="replace").strip())
        if response.status_code == TOO_MANY_REQUESTS:
            wait = response.headers.get("retry-after", "")
            message = f"{self._base} asks for fewer requests: {error if isinstance(error, str) else error.message}"
            return QueueFull(message, retry_after_s=float(wait) if wait.isdigit() else 1.0)
        return failure(error, self._base, response.status_code)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the client's errors into ours."""
        import httpx  # noqa: PLC0415 - open() has paid for it

        try:
            yield
        except httpx.TimeoutException as error:
            silence = f"{self._base} said nothing for {self._config.timeout_s:g} s ({type(error).__name__})"
            raise ModelFailed(f"{silence}; is it up, or is timeout_s too short for its queue?") from error
        except httpx.ConnectError as error:
            raise ModelFailed(f"cannot reach {self._base}: {error}; is it running, and is base_url right?") from error
        except httpx.HTTPError as error:
            raise ModelFailed(f"the connection to {self._base} broke: {type(error).__name__}: {error}") from error

    async def count_tokens(self, texts: list[str]) -> list[int]:
        """Tokens of each text, from the endpoint's tokenizer or estimated; see the class."""
        at_once = asyncio.Semaphore(TEXTS_AT_ONCE)

        async def count(client: httpx.AsyncClient, text: str) -> int:
            async with at_once:
                fields = {"prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
                answer = await self._ask(client, f"{self._root}/tokenize", fields)
            return estimated_tokens(text) if answer is None else answer.count or len(answer.tokens)

        async with self._connected() as client:
            counts = await asyncio.gather(*(count(client, text) for text in texts), return_exceptions=True)
            for count_or_error in counts:  # all have ended before the first error is raised: no sibling runs on
                if isinstance(count_or_error, BaseException):
                    raise count_or_error
        return cast("list[int]", counts)

    async def count_prompt(self, messages: list[ChatMessage]) -> int:
        """Tokens of the messages with their template: asked of llama.cpp's or vLLM's route, or estimated."""
        async with self._connected() as client:
            for url in (f"{self._base}/chat/completions/input_tokens", f"{self._root}/tokenize"):
                answer = await self._ask(client, url, {"messages": messages})
                if answer and (count := answer.input_tokens or answer.count):
                    return count
        return sum(estimated_tokens(m.content) + MESSAGE_TOKENS for m in messages)

    async def _ask(self, client: httpx.AsyncClient, url: str, fields: dict[str, Any]) -> _Counts | None:
        """The answer of a counting route; None from an endpoint that has it not, which is asked once only."""
        if url in self._missing:
            return None
        response = await client.post(url, content=msgspec.json.encode({"model": self._config.model, **fields}))
        try:
            if response.status_code == OK:
                return _counts.decode(response.content)
        except msgspec.DecodeError:
            pass  # a page of a site that answers 200 to everything: not a tokenizer
        self._missing.add(url)
        return None

    async def _counted(self, prompt: Prompt, text: str) -> Usage:
        """The usage of a reply whose endpoint did not report it."""
        completion = await self.count_tokens([text])
        return Usage(await self.count_prompt(list(prompt.messages)), completion[0])

    def statistics(self) -> LanguageModelStatistics:
        """Counters since the model was opened."""
        return self._outcomes.statistics(
            self._config.model, self.context_tokens, estimated_counts=f"{self._root}/tokenize" in self._missing
        )

    async def aclose(self) -> None:
        """Close every connection."""
        self._closed = True
        for client in list(self._clients):
            await client.aclose()


def _is_http_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:  # unbalanced brackets, a port that is none
        return False


def _pieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body as it comes; httpx says iterator, and means a generator that wants closing."""
    return cast("AsyncGenerator[bytes, None]", response.aiter_bytes())


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries an API key; none without one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def estimated_tokens(text: str) -> int:
    """One token per three bytes of UTF-8, rounded up."""
    return -(-len(text.encode()) // 3)
