"""Checks values against the JSON schema that a prompt asks its answer to follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.errors import InvalidInput


def schema_validator(schema: dict[str, Any]) -> Any:
    """A jsonschema validator of the schema's own draft (2020-12 where it names none).

    Args:
        schema: The schema; whatever it refers to must be inside it.

    Raises:
        InvalidInput: It is not a JSON schema, or refers to something outside.
    """
    import jsonschema  # noqa: PLC0415 - 0.1 s that only schemas pay
    import referencing.jsonschema  # noqa: PLC0415 - as above

    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidInput(f"the answer schema is not a JSON schema, at {error.json_path}: {error.message}") from error
    # An empty registry: jsonschema's default one would fetch whatever URL a stranger's schema names.
    resolver = referencing.Registry().resolver_with_root(referencing.jsonschema.DRAFT202012.create_resource(schema))
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except referencing.exceptions.Unresolvable as error:
            raise InvalidInput(
                f"the answer schema refers to {reference!r}, which is not in it; put it under $defs"
            ) from error
    return kind(schema, registry=referencing.Registry())


def _references(schema: Any) -> Iterator[str]:
    """Every `$ref` in a schema."""
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        for part in schema.values():
            yield from _references(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _references(part)
