"""The contract of a language model: what a prompt goes into and what comes out, whoever runs the weights.

Three backends keep it: `llamacpp.LlamaCpp`, `vllm_engine.VllmEngine` and `openai_compatible.OpenAICompatible`. All
three are *live* producers: one engine serves many requests at once, so a slow reader never pauses it; what it has
generated waits for the reader, at most `max_tokens` deltas a request. Declare the step so:
`stage.step(LlamaCpp.generate, live=True)`.

::

    HeadraceError
    ├── InvalidInput        the prompt, its schema or the configuration is wrong; nothing was generated
    ├── QueueFull           an endpoint asks for fewer requests (HTTP 429); carries `retry_after_s`
    ├── ModelFailed         the model or its endpoint failed, before the first delta or after some
    └── ReplyRejected       the reply ended, and is not what the prompt's schema asks for
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from engine.errors import HeadraceError, InvalidInput
from operators.messages import ChatMessage, Delta, Finish, Prompt, Text, Usage
from operators.models.answer_schema import schema_validator


class LanguageModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one language model.

    `open_requests` counts what the model still works for, cancelled requests included until the model has really
    stopped: zero when nothing leaks. `estimated_counts` says that `count_tokens` estimates, because the endpoint
    offers no tokenizer.
    """

    model: str
    context_tokens: int
    open_requests: int
    finished: int  # replies that reached their Finish
    cancelled: int  # replies whose reader left before the end
    failed: int  # replies that ended in an error
    estimated_counts: bool = False


class LanguageModel(Protocol):
    """Something that continues a chat prompt. Any number of callers at once, from one event loop."""

    @property
    def context_tokens(self) -> int:
        """The window: tokens of prompt and reply together."""
        ...

    def generate(self, prompt: Prompt) -> AsyncIterator[Delta]:
        """Stream the reply.

        Closing the generator, or cancelling the task that reads it, stops the model within one decoding step (one
        batch of prompt tokens while the prompt is still being read). It returns at once and does not wait for that
        step; `statistics().open_requests` falls when it has ended.

        Args:
            prompt: Messages, `max_tokens`, and an optional `answer_schema` that decoding is constrained to.

        Yields:
            Text deltas, never empty, never half a character; then exactly one Finish with reason "stop" or "length"
            and the model's own token counts.

        Raises:
            InvalidInput: The prompt is longer than the window (both numbers are named), or its schema is not one.
            QueueFull: The endpoint asks to come back later.
            ModelFailed: The model or its endpoint failed.
            ReplyRejected: In place of Finish, when the prompt has a schema and the reply does not follow it.
        """
        ...

    async def count_tokens(self, texts: list[str]) -> list[int]:
        """Tokens of each text, without special tokens, with the model's own tokenizer."""
        ...

    async def count_prompt(self, messages: list[ChatMessage]) -> int:
        """Tokens of the messages as the model reads them: chat template and special tokens included."""
        ...

    def statistics(self) -> LanguageModelStatistics:
        """Counters since the model was opened."""
        ...

    async def aclose(self) -> None:
        """Stop every reply, wait until the model has stopped, free the weights. Open generators raise ModelFailed."""
        ...


class ModelFailed(HeadraceError):
    """The model, or the endpoint that runs it, failed.

    Args:
        message: What happened, where, and what to do.
        status: The HTTP status, when an endpoint answered with one.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ReplyRejected(HeadraceError):
    """A reply that had to follow a JSON schema does not, or was cut before its end.

    Args:
        message: Which rule it breaks.
        text: The whole reply, for logs.
        usage: What it cost.
    """

    def __init__(self, message: str, *, text: str, usage: Usage) -> None:
        super().__init__(message)
        self.text = text
        self.usage = usage


class Outcomes:
    """Counts replies: those that are open, and how the others ended."""

    def __init__(self) -> None:
        self.open = self.finished = self.cancelled = self.failed = 0

    @contextmanager
    def counting(self, reply: Reply) -> Iterator[None]:
        """Count the reply that is streamed inside the block; a reader may leave at its Finish or read to the end."""
        self.open += 1
        try:
            yield
        except BaseException as error:
            if not reply.finished:
                self.cancelled += isinstance(error, asyncio.CancelledError | GeneratorExit)
                self.failed += not isinstance(error, asyncio.CancelledError | GeneratorExit)
            raise
        finally:
            self.open -= 1
            self.finished += reply.finished

    def statistics(
        self, model: str, context_tokens: int, *, open_requests: int | None = None, estimated_counts: bool = False
    ) -> LanguageModelStatistics:
        """The counts; `open_requests` when the backend knows better than its readers what still runs."""
        return LanguageModelStatistics(
            model=model,
            context_tokens=context_tokens,
            open_requests=self.open if open_requests is None else open_requests,
            finished=self.finished,
            cancelled=self.cancelled,
            failed=self.failed,
            estimated_counts=estimated_counts,
        )


class Reply:
    """Collects one reply while it is streamed, and accepts or rejects it at its end.

    Args:
        prompt: The prompt that is answered.
        model: The model's name, for Finish.
        context_tokens: The model's window.

    Raises:
        InvalidInput: The prompt is longer than the window, as far as its own count tells; or its schema is not one.
    """

    def __init__(self, prompt: Prompt, *, model: str, context_tokens: int) -> None:
        if prompt.max_tokens < 1:
            raise InvalidInput(f"max_tokens is {prompt.max_tokens}, expected 1 or more")
        if not prompt.messages:
            raise InvalidInput("the prompt has no messages; it needs at least one from the user")
        if prompt.prompt_tokens > context_tokens:
            raise prompt_too_long(prompt.prompt_tokens, context_tokens)
        self.model = model
        self._check: Any = None if prompt.answer_schema is None else schema_validator(prompt.answer_schema)
        self._pieces: list[str] = []
        self.finished = False

    @property
    def text(self) -> str:
        """The reply so far."""
        return "".join(self._pieces)

    def add(self, piece: str) -> Text:
        """The delta of a non-empty piece of text."""
        self._pieces.append(piece)
        return Text(piece)

    def finish(self, reason: str | None, usage: Usage | None) -> Finish:
        """The end of the reply.

        Args:
            reason: As the model names it; None when its stream ended without one.
            usage: The model's own counts; None when its stream ended without them.

        Raises:
            ModelFailed: The model did not end by itself nor at the limit.
            ReplyRejected: The prompt has a schema, and the reply was cut, is not JSON, or breaks it.
        """
        if reason is None or usage is None:
            raise ModelFailed(f"the model {self.model!r} broke off after {len(self.text)} characters; ask again")
        if reason not in {"stop", "length"}:
            raise ModelFailed(f"the model {self.model!r} ended its reply with {reason!r}, expected stop or length")
        if self._check is not None:
            self._accept(reason, usage)
        self.finished = True
        return Finish(reason=reason, usage=usage, model=self.model)

    def _accept(self, reason: str, usage: Usage) -> None:
        if reason == "length":
            spent = f"the reply was cut after {usage.completion_tokens} tokens, before its JSON ended; raise max_tokens"
            raise ReplyRejected(spent, text=self.text, usage=usage)
        try:
            value = msgspec.json.decode(self.text)
        except msgspec.DecodeError as error:
            raise ReplyRejected(f"the reply is not JSON: {error}", text=self.text, usage=usage) from error
        if broken := next(self._check.iter_errors(value), None):
            where = f"the reply breaks its schema at {broken.json_path}: {broken.message}"
            raise ReplyRejected(where, text=self.text, usage=usage)


def prompt_too_long(prompt_tokens: int, context_tokens: int) -> InvalidInput:
    """The error of a prompt that does not fit its model's window."""
    return InvalidInput(
        f"the prompt has {prompt_tokens} tokens and the model's window holds {context_tokens}; "
        "send fewer or shorter passages, or open the model with a larger window"
    )
