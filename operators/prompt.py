"""Writes the prompt: the instructions, as many whole sources as fit the model, the question."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import msgspec

from engine.errors import InvalidInput
from operators.messages import ChatMessage, Passage, Plan, Prompt, Results

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_REQUIRED = ("context", "query")
_KNOWN = (*_REQUIRED, "schema")
_PART = re.compile(r"^=== (\w+)[ \t]*\n", re.MULTILINE)


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """The text around sources and question.

    A template file is UTF-8 text in parts, each below a line "=== system" or "=== user"; a file without such lines is
    the user part. The parts together hold {context} (the numbered sources) and {query} (the question), and may hold
    {schema} (the JSON schema of the answer). Braces around anything that is no identifier mean themselves.

    Args:
        name: The file's name without ".txt", for results.
        hash: First 12 hex digits of the SHA-256 of the file, for results.
        system: The system message; empty for none.
        user: The user message.

    Raises:
        InvalidInput: A placeholder is missing or unknown.
    """

    name: str
    hash: str
    system: str
    user: str

    def __post_init__(self) -> None:
        found = _PLACEHOLDER.findall(self.system + self.user)
        if missing := [name for name in _REQUIRED if name not in found]:
            raise InvalidInput(
                f"template {self.name!r} lacks {{{missing[0]}}}; a template needs {{context}} and {{query}}"
            )
        if unknown := [name for name in found if name not in _KNOWN]:
            raise InvalidInput(
                f"template {self.name!r} has the unknown placeholder {{{unknown[0]}}}; "
                "known are {context}, {query} and {schema}"
            )


def load_template(name: str) -> Template:
    """Return the packaged template of that name, or the one in a file of your own.

    Args:
        name: A name such as "answer.v1", or a path: anything that has a slash or ends in ".txt".

    Raises:
        InvalidInput: There is no such template or file, it is not UTF-8, its parts are unknown or repeated, or its
            placeholders are wrong.
    """
    try:
        if "/" in name or name.endswith(".txt"):
            content = Path(name).read_bytes()
        else:
            content = resources.files("operators.prompts").joinpath(f"{name}.txt").read_bytes()
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no template {name!r}; packaged are {', '.join(_packaged())}, and a path to a file works too"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"template {name!r} cannot be read: {error}; it must be a file of UTF-8 text") from error
    parts = _parts(name, text.replace("\r\n", "\n"))
    return Template(
        name=Path(name).name.removesuffix(".txt"),
        hash=hashlib.sha256(content).hexdigest()[:12],
        system=parts.get("system", ""),
        user=parts.get("user", ""),
    )


class PromptConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How prompts are written.

    Args:
        context_window: Tokens that the model takes, prompt and answer together; the prompt gets what the plan's
            max_answer_tokens leave.
        message_overhead: Tokens that the model's chat format adds to each message; 8 covers the common ones.
        template: For free answers.
        schema_template: For answers under a JSON schema.

    Raises:
        InvalidInput: A number is out of its range.
    """

    context_window: int = 4096
    message_overhead: int = 8
    template: Template = msgspec.field(default_factory=lambda: load_template("answer.v1"))
    schema_template: Template = msgspec.field(default_factory=lambda: load_template("answer_json.v1"))

    def __post_init__(self) -> None:
        if self.context_window < 1:
            raise InvalidInput(f"context_window is {self.context_window}, expected 1 or more tokens, such as 4096")
        if self.message_overhead < 0:
            raise InvalidInput(f"message_overhead is {self.message_overhead}, expected 0 or more tokens; 8 is common")


def prompt_texts(plan: Plan, results: Results, *, config: PromptConfig) -> list[str]:
    """The texts whose lengths `build_prompt` needs: each message without sources, then each source once.

    They are counted by whoever has the generator's tokenizer, which may be another process.
    """
    bare = _messages(_template(plan, config), plan, [])
    return [*(message.content for message in bare), *(f"{_source(1, p)}\n\n" for p in _distinct(results.passages))]


def build_prompt(plan: Plan, results: Results, lengths: list[int], *, config: PromptConfig) -> Prompt:
    """Return the prompt for the passages of `results`, best first, numbered from 1 in that order.

    Passages are taken whole: one that does not fit is skipped and the next is tried, so that one long passage does
    not keep shorter ones out. A passage whose id or text was taken already is dropped. At most `plan.limit` are taken.
    Substitution is a single pass: placeholders inside passages, question or schema mean themselves.

    Args:
        plan: The question, its language, how long the answer may be, the schema it follows.
        results: Passages in order of rank.
        lengths: Tokens of each of `prompt_texts`, as the generator's model counts them. Joined texts may count a token
            more than their parts, so each source is taken to be one longer.
        config: Window and templates.

    Returns:
        The prompt. `prompt_tokens` is the sum of the lengths of what it holds, without what the chat format adds.
        Without passages, `sources` is empty.

    Raises:
        InvalidInput: Question and instructions alone exceed the window that the answer leaves.
    """
    template = _template(plan, config)
    distinct = list(_distinct(results.passages))
    parts = len(_messages(template, plan, []))
    if len(lengths) != parts + len(distinct):
        raise ValueError(f"{len(lengths)} lengths for {parts + len(distinct)} texts; count what prompt_texts gives")
    budget = config.context_window - plan.max_answer_tokens - config.message_overhead * parts
    left = budget - sum(lengths[:parts])
    if left < 0:
        raise InvalidInput(
            f"the question and its instructions take {budget - left} tokens, but of context_window "
            f"{config.context_window} only {budget} are left beside max_answer_tokens {plan.max_answer_tokens}; "
            "shorten the question or lower max_answer_tokens"
        )
    fitting = _fitting(distinct, [length + 1 for length in lengths[parts:]], left)[: plan.limit]
    sources = tuple(passage for passage, _ in fitting)
    return Prompt(
        question=plan.question,
        messages=_messages(template, plan, sources),
        sources=sources,
        max_tokens=plan.max_answer_tokens,
        template=f"{template.name}@{template.hash}",
        prompt_tokens=sum(lengths[:parts]) + sum(length for _, length in fitting),
        answer_schema=plan.answer_schema,
        partial=results.partial,
    )


def _template(plan: Plan, config: PromptConfig) -> Template:
    return config.template if plan.answer_schema is None else config.schema_template


def _packaged() -> list[str]:
    files = resources.files("operators.prompts").iterdir()
    return sorted(file.name.removesuffix(".txt") for file in files if file.name.endswith(".txt"))


def _parts(name: str, text: str) -> dict[str, str]:
    head, *rest = _PART.split(text)
    if not rest:
        return {"user": head.strip()}
    parts = {part: content.strip() for part, content in zip(rest[::2], rest[1::2], strict=True)}
    if head.strip() or parts.keys() - {"system", "user"} or len(parts) * 2 != len(rest) or "user" not in parts:
        raise InvalidInput(
            f"template {name!r} must consist of the parts '=== system' and '=== user', each once, or have no part lines"
        )
    return parts


def _distinct(passages: Sequence[Passage]) -> Iterator[Passage]:
    ids: set[str] = set()
    texts: set[str] = set()
    for passage in passages:
        if passage.chunk_id not in ids and passage.text not in texts:
            yield passage
        ids.add(passage.chunk_id)
        texts.add(passage.text)


def _fitting(passages: Sequence[Passage], lengths: Sequence[int], left: int) -> list[tuple[Passage, int]]:
    """The passages that fit, each with its length."""
    fitting: list[tuple[Passage, int]] = []
    for passage, length in zip(passages, lengths, strict=True):
        if length <= left:
            fitting.append((passage, length))
            left -= length
    return fitting


def _messages(template: Template, plan: Plan, sources: Sequence[Passage]) -> tuple[ChatMessage, ...]:
    values = {
        "context": "\n\n".join(_source(number, source) for number, source in enumerate(sources, start=1)),
        "query": plan.question,
        "schema": "" if plan.answer_schema is None else msgspec.json.encode(plan.answer_schema).decode(),
    }
    parts = (("system", template.system), ("user", template.user))
    return tuple(
        ChatMessage(role, _PLACEHOLDER.sub(lambda found: values[found[1]], part)) for role, part in parts if part
    )


def _source(number: int, passage: Passage) -> str:
    title = " ".join(passage.title.split()) or passage.document_id
    return f"[{number}] {title}\n{passage.text}"
