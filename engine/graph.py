"""A graph: a typed function that draws itself when it is defined, and can be checked, hashed and explained."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast, get_origin

from engine.edges import fits, hints_of, identity_of, show, value_fits
from engine.errors import GraphError, GraphTypeError
from engine.stage import Stage
from engine.step import Step, canvas
from engine.stream import Stream

P = ParamSpec("P")
R = TypeVar("R")

_ENGINE = str(Path(__file__).parent)


class Edge:
    """Stands for a value that does not exist yet, while a graph is being drawn."""

    __slots__ = ("kind", "node", "source")

    def __init__(self, node: int, kind: Any, source: str) -> None:
        self.node = node  # index of the node whose value it is; inputs come first
        self.kind = kind
        self.source = source

    def _no_value(self, *_: Any, **__: Any) -> NoReturn:
        raise GraphError(
            f"the value of {self.source!r} does not exist while the graph is drawn: pass it to a step as a whole; "
            "to run a step only sometimes, declare it with Step.when"
        )

    __bool__ = __iter__ = __len__ = __getitem__ = __await__ = __aiter__ = __contains__ = _no_value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._no_value()


@dataclass(frozen=True)
class Node:
    """One step of a graph with its inputs, which are edges or constants."""

    index: int
    step: Step[Any, Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    where: str  # file:line of the call

    @property
    def sources(self) -> list[int]:
        """Indices of the nodes whose values flow in, with repeats."""
        return [a.node for a in (*self.args, *self.kwargs.values()) if isinstance(a, Edge)]


class Drawing:
    """The canvas on which the steps of one graph draw themselves."""

    def __init__(self, inputs: Sequence[inspect.Parameter]) -> None:
        self.inputs = tuple(inputs)
        self.edges = tuple(Edge(i, p.annotation, p.name) for i, p in enumerate(inputs))
        self.nodes: list[Node] = []

    def add(self, step: Step[Any, Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Edge:
        """Draw `step`; its inputs are checked against its annotations at once."""
        where = _caller()
        try:
            bound = step.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise GraphTypeError(f"{where}: step {step.name!r}: {error}; it is {step!r}", step=step.name) from None
        for parameter, value in _pairs(step.signature, bound):
            _check(step, parameter, value, where)
        index = len(self.inputs) + len(self.nodes)
        name = self._fresh_name(step.name)
        self.nodes.append(Node(index, step, name, bound.args, bound.kwargs, where))
        return Edge(index, step.result, name)

    def _fresh_name(self, name: str) -> str:
        taken = {n.name for n in self.nodes}
        return name if name not in taken else next(f"{name}_{i}" for i in range(2, 1000) if f"{name}_{i}" not in taken)


def _pairs(signature: inspect.Signature, bound: inspect.BoundArguments) -> Iterable[tuple[inspect.Parameter, Any]]:
    """Each parameter with each value bound to it."""
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from ((parameter, v) for v in value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield from ((parameter, v) for v in value.values())
        else:
            yield parameter, value


def _check(step: Step[Any, Any], parameter: inspect.Parameter, value: Any, where: str) -> None:
    wanted = parameter.annotation
    if isinstance(value, Edge):
        if not fits(value.kind, wanted):
            raise GraphTypeError(
                f"{where}: step {step.name!r} takes {parameter.name}: {show(wanted)}, "
                f"but {value.source!r} gives {show(value.kind)}",
                step=step.name,
            )
        return
    if isinstance(value, (list, tuple, set, dict)) and any(isinstance(v, Edge) for v in _members(value)):
        raise GraphTypeError(
            f"{where}: step {step.name!r}: {parameter.name} is a {type(value).__name__} with values of steps inside; "
            "pass each as an argument of its own (declare the step with *args)",
            step=step.name,
        )
    if not value_fits(value, wanted):
        raise GraphTypeError(
            f"{where}: step {step.name!r} takes {parameter.name}: {show(wanted)}, but the constant is {value!r}",
            step=step.name,
        )


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else cast("Iterable[Any]", value)


def _caller() -> str:
    """file:line of the nearest frame outside the engine."""
    frame: Any = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_ENGINE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Graph(Generic[P, R]):
    """A drawn and checked graph; a value that is the same for every engine.

    Made by `@graph`. Run it with `engine.run.run` (blocking) or `engine.run.start` (async).

    Raises:
        GraphTypeError: An edge joins two types that do not fit; names step, line and both types.
        GraphError: A step's value is never used, or the function returns something that no step made.
    """

    def __init__(self, fn: Callable[P, R]) -> None:
        self.fn = fn
        self.name = fn.__name__
        self.doc = inspect.getdoc(fn) or ""
        hints = hints_of(fn, self.name)
        self.result: Any = hints["return"]
        parameters = [p.replace(annotation=hints[p.name]) for p in inspect.signature(fn).parameters.values()]
        self.signature = inspect.Signature(parameters, return_annotation=self.result)
        drawing = Drawing(parameters)
        token = canvas.set(drawing)
        try:
            end = cast("Callable[..., Any]", fn)(*drawing.edges)
        finally:
            canvas.reset(token)
        self.inputs = drawing.inputs
        self.nodes = tuple(drawing.nodes)
        self.output = self._checked_end(end)
        self.notes: tuple[str, ...] = ()

    def _checked_end(self, end: Any) -> int:
        where = f"{self.fn.__code__.co_filename}:{self.fn.__code__.co_firstlineno}"
        if not isinstance(end, Edge) or end.node < len(self.inputs):
            raise GraphError(f"{where}: graph {self.name!r} returns {end!r}; it must return the value of a step")
        if not fits(end.kind, self.result):
            raise GraphTypeError(
                f"{where}: graph {self.name!r} promises {show(self.result)}, but {end.source!r} gives {show(end.kind)}"
            )
        self._refuse_shared_streams()
        used = {s for n in self.nodes for s in n.sources} | {end.node}
        idle = [n for n in self.nodes if n.index not in used]
        if idle:
            raise GraphError(
                f"{idle[0].where}: graph {self.name!r} never uses the value of step {idle[0].name!r}; "
                "use it or take the step out",
                step=idle[0].name,
            )
        return end.node

    def _refuse_shared_streams(self) -> None:
        """Raise when two inputs read one stream: items would go to the one or the other."""
        read: set[int] = set()
        for node in self.nodes:
            for edge in (a for a in (*node.args, *node.kwargs.values()) if isinstance(a, Edge)):
                if get_origin(edge.kind) is Stream and edge.node in read:
                    raise GraphError(
                        f"{node.where}: the stream of {edge.source!r} is read by two steps; a stream has one reader",
                        step=node.name,
                    )
                read.add(edge.node)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Inside another graph's definition: draw this graph's steps there."""
        if canvas.get() is None:
            raise GraphError(f"graph {self.name!r} is not started; use `with run({self.name}) as ask: ask(...)`")
        return self.fn(*args, **kwargs)

    @cached_property
    def stages(self) -> tuple[Stage[Any], ...]:
        """The stages that the graph's steps run on, each once, in the order of first use."""
        return tuple(dict.fromkeys(n.step.stage for n in self.nodes if n.step.stage is not None))

    @cached_property
    def hash(self) -> str:
        """16 hex digits of what the graph is: steps, edges, constants, conditions, stages and their settings.

        The code inside steps is not part of it; a change of code is a change of version.
        """
        lines = [self.name, str(self.signature)]
        for node in self.nodes:
            args = [f"#{a.node}" if isinstance(a, Edge) else repr(a) for a in node.args]
            kwargs = [f"{k}=#{v.node}" if isinstance(v, Edge) else f"{k}={v!r}" for k, v in node.kwargs.items()]
            when = node.step.condition.when.__qualname__ if node.step.condition else ""
            policy = node.step.placement.policy.describe() if node.step.placement else ""
            lines.append(f"{node.index} {node.name} {identity_of(node.step.fn)} {args} {kwargs} {when} {policy}")
        lines += [f"{s.name} {s.describe()} {s.opener()}" for s in self.stages]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return hash(self.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.hash == other.hash

    def noted(self, notes: Sequence[str]) -> Graph[P, R]:
        """This graph, with lines that explain() shows: what a reader of the picture would miss, and why."""
        self.notes = tuple(notes)
        return self

    def explain(self) -> str:
        """The graph in words: steps with their types, fused groups, hops, resources."""
        from engine.explain import explain  # noqa: PLC0415 - it reads graphs, which need not know it

        return explain(self)

    def dot(self) -> str:
        """The graph as Graphviz source, one cluster a stage."""
        from engine.explain import dot  # noqa: PLC0415 - as above

        return dot(self)

    def __repr__(self) -> str:
        return f"<graph {self.name} {self.hash}: {len(self.nodes)} steps>"


def graph(fn: Callable[P, R]) -> Graph[P, R]:
    """Draw and check the graph that `fn` describes; nothing runs.

    Example:
        >>> from engine.step import step
        >>> @step
        ... def double(n: int) -> int:
        ...     return 2 * n
        >>> @graph
        ... def quadruple(n: int) -> int:
        ...     return double(double(n))
        >>> [node.name for node in quadruple.nodes]
        ['double', 'double_2']
    """
    return Graph(fn)
