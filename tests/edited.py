"""Parsed files with one value changed."""

from __future__ import annotations

from typing import Any


def edited(content: Any, *path: str | int, value: object) -> Any:
    """`content`, in which the value at `path` is now this one, or is taken out by None."""
    at = content
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return content
