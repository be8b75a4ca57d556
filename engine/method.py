"""What a host must know of a method to run it: its types, and whether it streams."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from engine.edges import hints_of, yielded
from engine.errors import GraphError


@dataclass(frozen=True)
class Method:
    """A stage's method as both ends of a hop see it."""

    name: str
    args: Any  # tuple[...] of the argument types, self left out
    result: Any  # of a stream: the items' type
    streams: bool


@lru_cache(maxsize=512)
def method_of(owner: type, name: str) -> Method:
    """The method `name` of class `owner`.

    Raises:
        GraphError: There is no such async method.
    """
    fn = getattr(owner, name, None)
    if fn is None or not (inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)):
        raise GraphError(f"{owner.__qualname__} has no async method {name!r}")
    return describe(fn)


@lru_cache(maxsize=512)
def describe(fn: Any) -> Method:
    """The method that `fn`, an async function with self first, is."""
    hints = hints_of(fn, fn.__name__)
    names = list(inspect.signature(fn).parameters)[1:]
    streams = inspect.isasyncgenfunction(fn)
    result = yielded(hints["return"]) if streams else hints["return"]
    kinds = tuple(hints[n] for n in names)
    return Method(fn.__name__, tuple[kinds], result, streams)  # type: ignore[valid-type] # built at run time
