"""Which chunks a question may find: filters on document metadata, compiled to the database."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from engine.errors import InvalidInput

_SQL_TYPES = {str: "'text'", int: "'integer', 'real'", float: "'integer', 'real'"}


@dataclass(frozen=True)
class Allowed:
    """The keys that a filter lets through, int64[A] ascending."""

    keys: np.ndarray

    @cached_property
    def members(self) -> frozenset[int]:
        """The same as a set, for tests of one key at a time."""
        return frozenset(self.keys.tolist())


def condition(filters: dict[str, Any], scope_prefix: str) -> tuple[str, list[Any]]:
    """The SQL condition on `documents` that says the same, and its parameters.

    A metadata key must equal the value, or one of the values when a list is given; text, numbers and booleans are never
    equal to each other, 1 and 1.0 are. A document without the key is not let through; an empty list lets none through.

    Raises:
        InvalidInput: A value is neither of these.
    """
    terms: list[str] = []
    parameters: list[Any] = []
    if scope_prefix:
        terms.append("substr(id, 1, ?) = ?")
        parameters += [len(scope_prefix), scope_prefix]
    for key, wanted in filters.items():
        options = [_equals(key, value) for value in (wanted if isinstance(wanted, list | tuple) else [wanted])]
        any_of = " OR ".join(sql for sql, _ in options) or "FALSE"
        terms.append(f"EXISTS (SELECT 1 FROM json_each(metadata) AS item WHERE item.key = ? AND ({any_of}))")
        parameters += [key, *(parameter for _, more in options for parameter in more)]
    return " AND ".join(terms) or "TRUE", parameters


def _equals(key: str, value: Any) -> tuple[str, list[Any]]:
    if value is None or isinstance(value, bool):
        return f"item.type = '{msgspec.json.encode(value).decode()}'", []
    if type(value) not in _SQL_TYPES:
        raise InvalidInput(
            f"filter on {key!r}: {value!r} is a {type(value).__name__}; "
            "expected text, a number, true, false, null, or a list of these"
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        value = float(value)  # as the database reads such a number from JSON
    return f"(item.type IN ({_SQL_TYPES[type(value)]}) AND item.atom = ?)", [value]
