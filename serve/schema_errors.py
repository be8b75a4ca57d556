"""What a JSON schema finds wrong with a value, said in sentences that name the place and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidInput

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from referencing import Registry


def errors_in(value: object, schema: Mapping[str, Any], registry: Registry[Any]) -> list[str]:
    """Every violation of `schema` (draft 2020-12) by `value`, in the order of the places; none for a good value.

    Args:
        value: Parsed YAML or JSON.
        schema: May refer to what `registry` holds.
        registry: The schemas that are referred to.
    """
    from jsonschema import Draft202012Validator, exceptions  # noqa: PLC0415 - heavy

    found = Draft202012Validator(schema, registry=registry).iter_errors(value)
    deepest = [exceptions.best_match([error]) for error in found]
    deepest.sort(key=lambda error: [str(part) for part in error.absolute_path])
    return list(dict.fromkeys(sentence for error in deepest for sentence in _sentences(error)))


def refuse(file: Path, found: Sequence[str]) -> None:
    """Raise when something was found wrong with a file.

    Raises:
        InvalidInput: All that was found.
    """
    if found:
        raise InvalidInput("\n  ".join([f"{file}: {len(found)} to mend", *found]))


def place(path: Iterable[str | int]) -> str:
    """A path to a value as one writes it: spec.groups[0].name; empty for the whole."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def meant(key: str, known: Iterable[str]) -> str:
    """The end of a sentence about a key that there is not: the known one that is close to it, if there is one."""
    close = get_close_matches(key, list(known), 1)
    return f"; do you mean {close[0]}?" if close else ""


def _sentences(error: ValidationError) -> list[str]:
    at = place(error.absolute_path)
    if error.validator == "additionalProperties" and error.validator_value is False:
        known = error.schema.get("properties", {})
        extra = [key for key in error.instance if key not in known]
        return [f"{at}.{key} is not known there{meant(str(key), known)}".removeprefix(".") for key in extra]
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return [f"{at}.{key} is missing".removeprefix(".") for key in missing]
    if error.validator == "pattern":
        return [f"{at}: {error.instance!r} is not {error.schema.get('description', error.validator_value)}"]
    wanted = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    if error.validator == "type" and "string" in wanted and isinstance(error.instance, int | float):
        text = str(error.instance).lower() if isinstance(error.instance, bool) else str(error.instance)
        return [f'{at}: {text} is no text; write "{text}", in quotes']
    return [f"{at or 'the file'}: {error.message}"]
