"""Runs graphs: starts their stages, and walks a compiled graph once for every request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from engine.bridge import LoopThread
from engine.errors import InvalidInput
from engine.graph import Graph
from engine.host import HostStatistics
from engine.local import open_local
from engine.plan import compile_graph
from engine.pool import Pool
from engine.request import Request
from engine.scope import Scope
from engine.stage import Stage
from engine.stream import Stream

P = ParamSpec("P")
R = TypeVar("R")

EngineName = Literal["local", "ray"]
Opener = Callable[[Stage[Any]], Coroutine[Any, Any, Pool]]


class Session:
    """Started stages, shared by every graph that is started in it.

    Args:
        engine: "local": stages live in this process (isolated ones in child processes). "ray": each replica is an
            actor of the Ray cluster that `ray.init` finds, or of a new one on this machine. Or whatever starts a stage.

    Raises:
        InvalidInput: There is no such engine.
    """

    def __init__(self, engine: EngineName | Opener = "local") -> None:
        self._open = engine if callable(engine) else _opener(engine)
        self._pools: dict[Stage[Any], Pool] = {}

    async def start(self, graph: Graph[P, R]) -> Running[P, R]:
        """Start the stages of `graph` that are not started yet, all at once, and return what runs it.

        Raises:
            HeadraceError: A stage could not be opened; those opened for this graph are closed again.
        """
        missing = [s for s in graph.stages if s not in self._pools]
        opened = await asyncio.gather(*(self._open(s) for s in missing), return_exceptions=True)
        failures = [f for f in opened if isinstance(f, BaseException)]
        if failures:
            await asyncio.gather(*(p.aclose() for p in opened if isinstance(p, Pool)))
            raise failures[0]
        self._pools.update(zip(missing, cast("list[Pool]", opened), strict=True))
        return Running(graph, self._pools)

    @property
    def pools(self) -> list[Pool]:
        """The started stages."""
        return list(self._pools.values())

    async def aclose(self) -> None:
        """End every stage."""
        pools, self._pools = self._pools, {}
        await asyncio.gather(*(p.aclose() for p in pools.values()))


def _opener(engine: str) -> Opener:
    if engine == "local":
        return open_local
    if engine == "ray":
        from engine.ray.cluster import ensure_ray, open_on_ray  # noqa: PLC0415 - one process needs no Ray

        ensure_ray()
        return open_on_ray
    raise InvalidInput(f"there is no engine {engine!r}; expected 'local' or 'ray'")


class Running(Generic[P, R]):
    """A graph whose stages are started; call it for each request, many at once.

    Example:
        >>> from engine.graph import graph
        >>> from engine.step import step
        >>> @step
        ... def double(n: int) -> int:
        ...     return 2 * n
        >>> @graph
        ... def quadruple(n: int) -> int:
        ...     return double(double(n))
        >>> with run(quadruple) as answer:
        ...     answer(10)
        40
    """

    def __init__(self, graph: Graph[P, R], pools: Mapping[Stage[Any], Pool]) -> None:
        self.graph = graph
        self._compiled = compile_graph(graph)
        self._pools = {s: pools[s] for s in graph.stages}
        self._ops = [
            None if op.node.step.stage is None else self._pools[op.node.step.stage] for op in self._compiled.ops
        ]
        self.active = 0  # requests that have not ended, their streams included

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run one request without a deadline."""
        return self._run(Scope(), args, kwargs)

    def within(self, scope: Scope) -> Callable[P, Coroutine[Any, Any, R]]:
        """Run one request in `scope`: its deadline, priority, cancellation and trace go to every step."""

        def ask(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
            return self._run(scope, args, kwargs)

        return ask

    async def _run(self, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        try:
            inputs = self.graph.signature.bind(*args, **kwargs).args if kwargs else args
            if len(inputs) != self._compiled.inputs:
                raise TypeError(f"takes {self._compiled.inputs} inputs, {len(inputs)} were given")
        except TypeError as error:
            raise InvalidInput(f"graph {self.graph.name!r}: {error}") from None
        request = Request(self._compiled, self._ops, scope, inputs)
        self.active += 1
        try:
            value = await request.result()
        except BaseException:
            self.active -= 1
            await request.end()
            raise
        if isinstance(value, Stream):
            return cast("R", Stream(request.delivered(value), on_end=self._ender(request)))
        self.active -= 1
        await request.end()
        return cast("R", value)

    def _ender(self, request: Request) -> Callable[[], Coroutine[Any, Any, None]]:
        async def end() -> None:
            self.active -= 1
            await request.end()

        return end

    @property
    def outstanding(self) -> int:
        """Calls and streams to stages that have not ended."""
        return sum(p.outstanding for p in self._pools.values())

    async def statistics(self) -> dict[str, list[HostStatistics]]:
        """Counters of every replica, by stage."""
        return {s.name: await p.statistics() for s, p in self._pools.items()}


@asynccontextmanager
async def start(graph: Graph[P, R], engine: EngineName = "local") -> AsyncIterator[Running[P, R]]:
    """A graph, running inside the block.

    `async with start(graph) as ask: await ask(...)`.
    """
    session = Session(engine)
    try:
        yield await session.start(graph)
    finally:
        await session.aclose()


class Blocking(Generic[P, R]):
    """The blocking face of a running graph; made by `run`."""

    def __init__(self, running: Running[P, R], bridge: LoopThread) -> None:
        self.running = running
        self._bridge = bridge

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one request; a stream comes back as something to iterate over with `for`."""
        return self._wait(self.running(*args, **kwargs))

    def within(self, scope: Scope) -> Callable[P, R]:
        """See Running.within."""

        def ask(*args: P.args, **kwargs: P.kwargs) -> R:
            return self._wait(self.running.within(scope)(*args, **kwargs))

        return ask

    def _wait(self, request: Coroutine[Any, Any, R]) -> R:
        value = self._bridge.wait(request)
        return cast("R", Stream(value, bridge=self._bridge)) if isinstance(value, Stream) else value

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop of the running graph."""
        return self._bridge.wait(coroutine)


@contextmanager
def run(graph: Graph[P, R], engine: EngineName = "local") -> Iterator[Blocking[P, R]]:
    """A graph, running inside the block, for blocking code.

    `with run(graph) as ask: ask(...)`.
    """
    bridge = LoopThread()
    session = Session(engine)
    try:
        yield Blocking(bridge.wait(session.start(graph)), bridge)
    finally:
        try:
            bridge.wait(session.aclose())
        finally:
            bridge.close()
