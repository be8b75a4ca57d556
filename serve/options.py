"""What commands share: their options, what those mean, and how a mistake is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import click
import msgspec

from engine.errors import HeadraceError, InvalidInput
from engine.scope import Identity
from operators.filter_parse import parse_filter
from operators.messages import Settings
from serve.checks import check_text
from serve.settings import Configuration

P = ParamSpec("P")

USER_MISTAKE, FAILURE, INTERRUPTED = 2, 1, 130
_EXAMPLE = '\'{"year": {"$gte": 2024}}\''


def told(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are one line on stderr: exit code 2 for what the user can mend, 1 for the rest."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except InvalidInput as error:
            click.echo(f"headrace: {error.message}", err=True)
            sys.exit(USER_MISTAKE)
        except HeadraceError as error:
            request = f" (request {error.request_id})" if error.request_id else ""
            click.echo(f"headrace: {error.message}{request}", err=True)
            sys.exit(FAILURE)
        except (KeyboardInterrupt, asyncio.CancelledError):
            click.echo("\nstopped", err=True)
            sys.exit(INTERRUPTED)

    return guarded


def shared(command: Callable[P, None]) -> Callable[P, None]:
    """The options that every command over a corpus has."""
    return _with(
        command,
        corpus_option,
        config_option,
        click.option("--engine", type=click.Choice(["local", "ray"]), default="local", help="Where stages run."),
    )


def corpus_option(command: Callable[P, None]) -> Callable[P, None]:
    """The option that names the corpus."""
    help_text = "Folder of the corpus. [default: $HEADRACE_CORPUS or ~/.headrace/corpus]"
    return click.option("--corpus", help=help_text)(command)


def config_option(command: Callable[P, None]) -> Callable[P, None]:
    """The option that names the configuration file."""
    return click.option("--config", help="TOML file with models and settings. [default: $HEADRACE_CONFIG]")(command)


def as_json_option(command: Callable[P, None]) -> Callable[P, None]:
    """The option of commands that print what a program may read."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def filter_option(command: Callable[P, None]) -> Callable[P, None]:
    """The option that chooses documents by what is known of them."""
    return click.option("--filter", "filter_json", help=f"Only documents that pass, as JSON: {_EXAMPLE}.")(command)


def scope_option(command: Callable[P, None]) -> Callable[P, None]:
    """The option that chooses documents by the beginning of their ids."""
    return click.option("--scope", help="Only documents whose id begins so.")(command)


def _with(command: Callable[P, None], *options: Callable[[Callable[P, None]], Callable[P, None]]) -> Callable[P, None]:
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asking:
    """How one question is asked, as options say it; None and nothing: as the configuration says."""

    limit: int | None
    offset: int | None
    legs: str | None
    filter_json: str | None
    scope: str | None
    threshold: float | None

    def settings(self, configuration: Configuration) -> Settings:
        """The configured settings, changed by the options.

        Raises:
            InvalidInput: An option cannot be read.
        """
        settings, chosen = configuration.search, self._chosen()
        if self.limit is not None:
            chosen["candidates"] = max(self.limit, settings.candidates)
        return msgspec.structs.replace(settings, **chosen)

    def _chosen(self) -> dict[str, Any]:
        options = {
            "limit": self.limit,
            "offset": self.offset,
            "legs": None if self.legs is None else parse_legs(self.legs),
            "filters": None if self.filter_json is None else parse_filters(self.filter_json),
            "scope_prefix": self.scope,
            "score_threshold": self.threshold,
        }
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Person:
    """For whom a command acts, as options say it."""

    user: str | None
    groups: tuple[str, ...]

    def identity(self) -> Identity | None:
        """Who asks; None is whoever runs the corpus, who may see and change everything.

        Raises:
            InvalidInput: Groups without a user, or a name that is not UTF-8.
        """
        for name in (self.user, *self.groups):
            if name is not None:
                check_text("a name of --user or --group", name)
        if self.user is None:
            if self.groups:
                raise InvalidInput(f"--group {self.groups[0]!r} says whose question it is only with --user NAME")
            return None
        return Identity(self.user, self.groups)


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The options of commands that ask a question, handed to the command as its keyword `asked`."""
    return _with(
        _gathering(command, "asked", Asking),
        click.option("--limit", type=int, help="Passages to find.  [default: 10]"),
        click.option("--offset", type=int, help="Best passages to leave out before them: the next page.  [default: 0]"),
        click.option("--legs", help="Ways of retrieving, with weights: dense,lexical or dense=2,lexical=1."),
        filter_option,
        scope_option,
        click.option("--threshold", type=float, help="Least semantic score of a passage."),
    )


def acting(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say for whom a command acts, handed to the command as its keyword `person`."""
    return _with(
        _gathering(command, "person", Person),
        click.option("--user", help="Act for this person, who sees their own and their groups' documents only."),
        click.option("--group", "groups", multiple=True, help="A collection that --user belongs to; repeatable."),
    )


def _gathering(command: Callable[..., None], name: str, kind: type[Any]) -> Callable[..., None]:
    """A command that gets some of its options as one object."""

    @wraps(command)
    def gathered(*args: Any, **options: Any) -> None:
        fields = {field: options.pop(field) for field in kind.__dataclass_fields__}
        command(*args, **{name: kind(**fields)}, **options)

    return gathered


def parse_legs(text: str) -> dict[str, float]:
    """Legs and weights of `dense,lexical` or `dense=2,lexical=1`.

    Raises:
        InvalidInput: A weight is no number.
    """
    legs: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        try:
            legs[name] = float(weight) if weight else 1.0
        except ValueError:
            raise InvalidInput(
                f"--legs {text!r}: the weight {weight!r} is no number; write dense=2,lexical=1"
            ) from None
    return legs


def parse_filters(text: str) -> dict[str, Any]:
    """The mapping that a filter is written as, after a look at it: mistakes are told before anything is started.

    Raises:
        InvalidInput: It is no JSON object, or no filter.
    """
    try:
        filters: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidInput(f"--filter {text!r} is no JSON object ({error}); write it like {_EXAMPLE}") from error
    parse_filter(filters)
    return filters


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Keys and values of `KEY=VALUE`s.

    Raises:
        InvalidInput: One has no key, or no equals sign; or a key comes twice.

    >>> parse_pairs(["year=2024", "kind=report"])
    {'year': 2024, 'kind': 'report'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidInput(f"{pair!r} is no KEY=VALUE; write it like year=2024")
        if key in found:
            raise InvalidInput(f"{key!r} is given twice; give it one value, or a list: {key}='[1, 2]'")
        found[key] = parse_value(value)
    return found


def parse_value(text: str) -> Any:
    """A value as JSON when it is JSON, else as the text that it is.

    >>> [parse_value(text) for text in ("3", "true", '["a"]', "three", '"3"')]
    [3, True, ['a'], 'three', '3']
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
