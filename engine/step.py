"""A step: a typed function that draws an edge inside `@graph` and simply runs outside."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, get_origin, overload

from engine.bridge import wait_for
from engine.edges import code_of, hints_of, show, yielded
from engine.errors import GraphError
from engine.policy import ONCE, Policy
from engine.stream import Stream

if TYPE_CHECKING:
    from engine.stage import Stage

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Kind(Enum):
    """How a step's function is called."""

    SYNC = "plain function"
    ASYNC = "coroutine"
    STREAM = "stream"


@dataclass(frozen=True)
class Placement:
    """Where a heavy step runs; light steps have none and run in the caller."""

    stage: Stage[Any]
    live: bool = False
    merge: Callable[[list[Any]], Any] | None = None
    split: Callable[..., list[tuple[Any, ...] | None]] | None = None
    policy: Policy = ONCE


@dataclass(frozen=True)
class Condition:
    """When a step runs; `otherwise` is its value when it does not."""

    when: Callable[..., bool]
    otherwise: Any


class Canvas(Protocol):
    """What a step draws itself on while a graph is being defined."""

    def add(self, step: Step[Any, Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Draw `step` with its inputs and return the edge that stands for its value."""
        ...


canvas: ContextVar[Canvas | None] = ContextVar("headrace_canvas", default=None)


class Step(Generic[P, R]):
    """A typed function that is a node of graphs; made by `step` or by a stage, not directly."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        placement: Placement | None = None,
        condition: Condition | None = None,
    ) -> None:
        self.fn = fn
        self.name = name or _default_name(fn)
        self.placement = placement
        self.condition = condition
        self.kind = _kind(fn)
        hints = hints_of(fn, self.name)
        self.result: Any = Stream[yielded(hints["return"])] if self.kind is Kind.STREAM else hints["return"]  # type: ignore[misc] # built at run time
        signature = inspect.signature(fn)
        parameters = list(signature.parameters.values())
        if placement is not None:
            parameters = parameters[1:]  # self: the stage's state
        self.signature = signature.replace(
            parameters=[p.replace(annotation=hints[p.name]) for p in parameters], return_annotation=self.result
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Draw an edge when a graph is being defined; otherwise run.

        Outside a graph a coroutine step blocks until it is done, so it cannot be called from a running event loop:
        there, await `step.fn(...)`.
        """
        drawing = canvas.get()
        if drawing is not None:
            return cast("R", drawing.add(self, args, kwargs))
        if self.placement is not None:
            raise GraphError(
                f"step {self.name!r} runs on stage {self.placement.stage.name!r}, which is not started; "
                "start a graph that uses it, or call the method on a state object of your own",
                step=self.name,
            )
        value = self.fn(*args, **kwargs)
        if self.kind is Kind.ASYNC:
            return cast("R", wait_for(value))
        return cast("R", Stream(value) if self.kind is Kind.STREAM else value)

    def named(self, name: str) -> Step[P, R]:
        """This step under another name."""
        twin = copy.copy(self)
        twin.name = name
        return twin

    def when(self, predicate: Callable[..., bool], otherwise: R) -> Step[P, R]:
        """This step, run only when `predicate` holds for its inputs.

        Args:
            predicate: Called with the step's inputs; light.
            otherwise: The step's value when it does not run.
        """
        twin = copy.copy(self)
        twin.condition = Condition(predicate, otherwise)
        return twin

    @property
    def stage(self) -> Stage[Any] | None:
        """The stage that the step runs on; None for a light one."""
        return self.placement.stage if self.placement else None

    def refuse_unless_a_method(self) -> None:
        """Raise unless the step can run on a stage.

        Raises:
            GraphError: It would block the stage's loop, or takes arguments that cannot cross a hop.
        """
        if self.kind is Kind.SYNC:
            raise GraphError(
                f"step {self.name!r} is a plain function, but a stage's loop must never block; write `async def` "
                "and hand long work to a batcher or a worker thread",
                step=self.name,
            )
        for parameter in self.signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                raise GraphError(f"step {self.name!r}: a stage's method takes plain arguments only", step=self.name)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{p.name}: {show(p.annotation)}" for p in self.signature.parameters.values())
        where = f", on {self.stage.name}" if self.stage else ""
        return f"<step {self.name}: ({inputs}) -> {show(self.result)}{where}>"


@overload
def step(fn: Callable[P, AsyncIterator[T]], *, name: str | None = None) -> Step[P, Stream[T]]: ...
@overload
def step(fn: Callable[P, Coroutine[Any, Any, T]], *, name: str | None = None) -> Step[P, T]: ...
@overload
def step(fn: Callable[P, T], *, name: str | None = None) -> Step[P, T]: ...
def step(fn: Callable[..., Any], *, name: str | None = None) -> Step[Any, Any]:
    """A light step: it runs in the caller's event loop, so keep it under a millisecond.

    Args:
        fn: A plain function, a coroutine function, or an async generator function (a stream). Every parameter and
            the result are annotated; edges are checked against the annotations.
        name: The step's name; the function's own when absent.

    Raises:
        GraphError: An annotation is missing or cannot be evaluated.

    Example:
        >>> @step
        ... def double(n: int) -> int:
        ...     return 2 * n
        >>> double(4)
        8
    """
    return Step(fn, name=name)


def _default_name(fn: Callable[..., Any]) -> str:
    code = code_of(fn)
    return type(fn).__name__ if code.__name__ == "__call__" else code.__name__


def _kind(fn: Callable[..., Any]) -> Kind:
    target = code_of(fn)
    if inspect.isasyncgenfunction(target):
        return Kind.STREAM
    if inspect.iscoroutinefunction(target):
        return Kind.ASYNC
    hints = getattr(target, "__annotations__", {})
    if get_origin(hints.get("return")) is AsyncIterator:
        return Kind.STREAM
    return Kind.SYNC
