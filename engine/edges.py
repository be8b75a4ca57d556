"""Whether a value of one annotated type may flow where another is expected."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from functools import partial
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from engine.errors import GraphError


def fits(source: Any, target: Any) -> bool:
    """Whether `source` may flow into `target`.

    Generic arguments are compared covariantly: what flows along edges is frozen. `Any` and type variables fit
    everything.
    """
    source, target = _plain(source), _plain(target)
    if Any in (source, target) or target is object or source == target:
        return True
    if isinstance(source, TypeVar) or isinstance(target, TypeVar):
        return True
    if _is_union(source):
        return all(fits(member, target) for member in get_args(source))
    if _is_union(target):
        return any(fits(source, member) for member in get_args(target))
    if get_origin(source) is Literal:
        return all(fits(type(value), target) for value in get_args(source))
    return get_origin(target) is not Literal and _class_fits(source, target)


def _plain(kind: Any) -> Any:
    """`kind` without Annotated, NewType and None's spelling."""
    if isinstance(kind, NewType):
        return _plain(kind.__supertype__)
    if hasattr(kind, "__metadata__"):
        return _plain(kind.__origin__)
    return type(None) if kind is None else kind


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _class_fits(source: Any, target: Any) -> bool:
    source_class, target_class = get_origin(source) or source, get_origin(target) or target
    if not (inspect.isclass(source_class) and inspect.isclass(target_class)):
        return bool(source_class == target_class)
    if not issubclass(source_class, target_class):
        return bool(source_class is int and target_class is float)
    source_args, target_args = _args(source), _args(target)
    if not source_args or not target_args or len(source_args) != len(target_args):
        return True
    return all(fits(a, b) for a, b in zip(source_args, target_args, strict=True))


def _args(kind: Any) -> tuple[Any, ...]:
    """Generic arguments; of an async generator only what it yields; of tuple[X, ...] X alone."""
    args = get_args(kind)
    if get_origin(kind) is AsyncGenerator:
        return args[:1]
    return tuple(a for a in args if a is not Ellipsis)


def value_fits(value: Any, target: Any) -> bool:
    """Whether a constant may be passed where `target` is expected; containers are checked by their class alone."""
    target = _plain(target)
    if target is Any or isinstance(target, TypeVar):
        return True
    if _is_union(target):
        return any(value_fits(value, member) for member in get_args(target))
    if get_origin(target) is Literal:
        return value in get_args(target)
    wanted = get_origin(target) or target
    if not inspect.isclass(wanted):
        return True
    return isinstance(value, wanted) or (wanted is float and isinstance(value, int))


def show(kind: Any) -> str:
    """A type as a person writes it."""
    if kind is None or kind is type(None):
        return "None"
    if _is_union(kind):
        return " | ".join(show(a) for a in get_args(kind))
    origin = get_origin(kind)
    if origin is not None and not isinstance(kind, type):
        inner = ", ".join("..." if a is Ellipsis else show(a) for a in get_args(kind))
        name = getattr(origin, "__name__", str(origin))
        return f"{name}[{inner}]" if inner else name
    return getattr(kind, "__name__", str(kind))


def code_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a callable: of a partial what it calls, of a callable object its class's `__call__`."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn if inspect.isroutine(fn) or inspect.isclass(fn) else type(fn).__call__


def identity_of(fn: Callable[..., Any]) -> str:
    """What a callable is, the same in every process: the name of its code, and what is bound to it."""
    bound = (fn.args, sorted(fn.keywords.items())) if isinstance(fn, partial) else ()
    code = code_of(fn)
    settings = repr(bound) if bound else "" if code is fn else repr(fn)
    return f"{code.__module__}.{code.__qualname__}{settings}"


def hints_of(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    """The annotations of `fn`, or of its `__call__`, evaluated.

    Raises:
        GraphError: One cannot be evaluated, or is missing.
    """
    target = code_of(fn)
    try:
        hints = typing.get_type_hints(target)
    except NameError as error:
        raise GraphError(
            f"step {name!r}: an annotation cannot be evaluated ({error}); "
            "import what it names outside `if TYPE_CHECKING`, graphs are checked at run time",
            step=name,
        ) from error
    missing = [p for p in list(inspect.signature(fn).parameters) if p not in hints and p != "self"]
    if "return" not in hints:
        missing.append("return")
    if missing:
        raise GraphError(f"step {name!r}: no annotation for {', '.join(missing)}; edges need types", step=name)
    return hints


def yielded(kind: Any) -> Any:
    """What an AsyncIterator-like annotation yields."""
    if get_origin(kind) in (AsyncIterator, AsyncGenerator, AsyncIterable):
        return get_args(kind)[0]
    return Any
