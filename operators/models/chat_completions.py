"""The wire format of OpenAI's streamed chat completions, which llama.cpp and vLLM speak as well."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import HeadraceError, InvalidInput
from operators.messages import Prompt, Text, Usage
from operators.models.language import ModelFailed, Reply, prompt_too_long

EVENT_BYTES = 1 << 20  # the longest event that is believed: a delta is some hundred bytes


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class ErrorBody(msgspec.Struct):
    """What an endpoint says of a failure; fields that it leaves out are empty."""

    message: str = ""
    type: str | None = None
    code: int | str | None = None
    n_prompt_tokens: int = 0  # llama.cpp: of a prompt that does not fit
    n_ctx: int = 0


class ChatChunk(msgspec.Struct):
    """One event of a streamed chat completion: the fields that are read, of the many that are sent."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: ErrorBody | str | None = None

    @property
    def text(self) -> str:
        """The text that it adds; empty for role, progress, usage and finish events."""
        return (self.choices[0].delta.content or "") if self.choices else ""

    @property
    def finish_reason(self) -> str | None:
        """Why the reply ended, in the event that ends it."""
        return self.choices[0].finish_reason if self.choices else None


chat_chunk = msgspec.json.Decoder(ChatChunk)


class SseReader:
    """Cuts a byte stream into the data of its server-sent events (WHATWG HTML, section 9.2).

    Works on bytes and decodes whole lines only: a chunk may end inside a character, and text splitters would also
    break lines at U+2028, which JSON leaves unescaped.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes.

        Raises:
            ModelFailed: An event is longer than any delta could be.
        """
        self._rest += chunk
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        events = [event for line in lines if (event := self._line(bytes(line).removesuffix(b"\r"))) is not None]
        if len(rest) + sum(map(len, self._data)) > EVENT_BYTES:
            raise ModelFailed(f"the endpoint sent an event of more than {EVENT_BYTES} bytes; is it a chat endpoint?")
        return events

    def _line(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            event, self._data = b"\n".join(self._data), []
            return event
        return None


def chat_request(prompt: Prompt, *, temperature: float, top_p: float, seed: int | None) -> dict[str, Any]:
    """The body of a streamed chat completion: all that every endpoint understands, `model` and token limit apart."""
    body: dict[str, Any] = {
        "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": temperature,
        "top_p": top_p,
    }
    if seed is not None:
        body["seed"] = seed
    if prompt.answer_schema is not None:
        schema = {"name": "answer", "schema": prompt.answer_schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


class ChatReply(Reply):
    """A reply that arrives as chat completion events."""

    reason: str | None = None
    usage: Usage | None = None

    def read(self, chunk: ChatChunk) -> Text | None:
        """The delta that an event adds, if it adds one.

        Raises:
            InvalidInput: The event says that the prompt does not fit the window.
            ModelFailed: The event reports an error.
        """
        if chunk.error is not None:
            raise failure(chunk.error, self.model)
        self.reason = chunk.finish_reason or self.reason
        self.usage = chunk.usage or self.usage
        return self.add(chunk.text) if chunk.text else None


def failure(error: ErrorBody | str, where: str, status: int | None = None) -> HeadraceError:
    """What an error's body means.

    Args:
        error: The body's `error`.
        where: The model or address, for the message.
        status: The HTTP status that it came with; None for one inside a stream.
    """
    body = ErrorBody(message=error) if isinstance(error, str) else error
    status = body.code if status is None and isinstance(body.code, int) else status
    if body.type == "exceed_context_size_error" and body.n_ctx:
        return prompt_too_long(body.n_prompt_tokens, body.n_ctx)
    text = body.message or "it gives no reason"
    if status in {400, 413, 422}:
        return InvalidInput(f"{where} refuses the request (HTTP {status}): {text}")
    advice = {401: "; check api_key", 403: "; check api_key", 404: "; check base_url and model"}.get(status or 0, "")
    return ModelFailed(f"{where} failed{f' (HTTP {status})' if status else ''}: {text}{advice}", status=status)
