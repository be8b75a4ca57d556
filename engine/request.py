"""One request on its way through a compiled graph."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Any

from engine.credits import Cost
from engine.errors import HeadraceError
from engine.plan import Compiled, Op
from engine.pool import Pool
from engine.scope import Scope, entered
from engine.step import Kind
from engine.stream import Stream
from engine.supervise import as_step_failure
from engine.trace import SKIPPED


class Request:
    """Walks a compiled graph: a step starts when its last input arrives, in the task of whoever brought it.

    A task is made only where the graph forks, so a chain costs no more than a chain of awaits. The first failure
    cancels what else runs for the request.

    Args:
        compiled: The graph.
        pools: For each step, the started stage that it runs on; None for a light one.
        scope: The request's scope.
        inputs: The graph's inputs.
    """

    __slots__ = ("_clock", "_compiled", "_group", "_pools", "_streams", "_values", "_waited", "_waiting", "scope")

    def __init__(self, compiled: Compiled, pools: Sequence[Pool | None], scope: Scope, inputs: Sequence[Any]) -> None:
        self._compiled = compiled
        self._pools = pools
        self.scope = scope
        self._clock = scope.clock
        self._values: list[Any] = [*inputs, *(None for _ in compiled.ops)]
        self._waiting = list(compiled.waiting)
        self._streams: list[Stream[Any]] = []
        self._waited: dict[int, float] = {}  # seconds that consumers waited for each stream, its sources included
        self._group: asyncio.TaskGroup | None = None

    async def result(self) -> Any:
        """The graph's value; a Stream is handed out before its items exist.

        Raises:
            HeadraceError: What ended the request: a step's failure, the deadline, cancellation.
        """
        self.scope.check()
        with entered(self.scope):
            await self.scope.in_time(self._walk_all())
        return self._values[self._compiled.output]

    async def _walk_all(self) -> None:
        first, *rest = self._compiled.first
        if not self._compiled.forks:
            await self._walk(first)
            return
        try:
            async with asyncio.TaskGroup() as self._group:
                for index in rest:
                    self._group.create_task(self._walk(index))
                await self._walk(first)
        except BaseExceptionGroup as group:
            raise _root(group) from None

    async def _walk(self, index: int) -> None:
        """Run step `index` and whatever becomes ready by it."""
        inputs, ops, waiting = self._compiled.inputs, self._compiled.ops, self._waiting
        run = self._run if self.scope.span is None else self._run_in_span
        ready: int | None = index
        while ready is not None:
            op = ops[ready - inputs]
            self._values[op.index] = await run(op, self.scope)
            ready = None
            for consumer in op.consumers:
                waiting[consumer] -= 1
                if waiting[consumer]:
                    continue
                if ready is None:
                    ready = consumer
                else:
                    self._group.create_task(self._walk(consumer))  # type: ignore[union-attr] # a fork: there is a group

    async def _run_in_span(self, op: Op, scope: Scope) -> Any:
        """As `_run`, in a span of the step's own; that of a stream is made where its items are."""
        if scope.span is None or op.kind is Kind.STREAM:
            return await self._run(op, scope.inside(None))
        with scope.span.child(op.name) as span:
            return await self._run(op, scope.inside(span))

    async def _run(self, op: Op, scope: Scope) -> Any:
        """The value of one step."""
        step = op.node.step
        args = op.arguments(self._values)
        began = self._clock.now()
        queued, batch = 0.0, 0
        try:
            if step.condition is not None and not step.condition.when(*args):
                if scope.trace is not None:
                    scope.trace.record(op.name, began, began, 0.0, 0.0, SKIPPED)
                if scope.span is not None:
                    scope.span.attributes["headrace.note"] = SKIPPED
                return step.condition.otherwise
            if op.kind is Kind.STREAM:
                return self._stream(op, args)
            pool = self._pools[op.index - self._compiled.inputs]
            if pool is not None:
                answer = await pool.call(step, args, scope)
                value, queued, served, batch = answer.value, answer.queued_s, answer.served_s, answer.batch
            else:
                value = step.fn(*args, **op.keyword_arguments(self._values)) if op.keywords else step.fn(*args)
                if op.kind is Kind.ASYNC:
                    value = await value
                served = self._clock.now() - began
        except Exception as error:
            raise as_step_failure(error, op.name, scope.id) from error
        if scope.trace is not None:
            scope.trace.record(op.name, began, self._clock.now(), queued, served, "", batch)
        if scope.span is not None:
            scope.span.cost(queued, served, batch)
        return value

    def _stream(self, op: Op, args: Sequence[Any]) -> Stream[Any]:
        stream = Stream(self._items(op, args))
        self._streams.append(stream)
        return stream

    async def _items(self, op: Op, args: Sequence[Any]) -> AsyncGenerator[Any, None]:
        """The items of a stream step, timed; the span is recorded when the stream ends, however it ends."""
        pool, cost, clock = self._pools[op.index - self._compiled.inputs], Cost(), self._clock
        scope = self.scope if self.scope.span is None else self.scope.inside(self.scope.span.child(op.name))
        source: AsyncIterator[Any]
        if pool is not None:
            source = pool.stream(op.node.step, args, scope, cost)
        else:
            source = op.node.step.fn(*args, **op.keyword_arguments(self._values))
        began, waited, first = clock.now(), 0.0, None
        with scope.span or nullcontext():
            try:
                while True:
                    asked = clock.now()
                    try:
                        with entered(scope):
                            item = await anext(source)
                    except StopAsyncIteration:
                        break
                    finally:
                        waited += clock.now() - asked
                    if first is None:
                        first = waited
                    yield item
            except Exception as error:
                raise as_step_failure(error, op.name, scope.id) from error
            finally:
                closing = getattr(source, "aclose", None)
                if closing is not None:
                    await closing()
                self._record_stream(op, scope, began, waited, first, cost)

    def _record_stream(
        self, op: Op, scope: Scope, began: float, waited: float, first: float | None, cost: Cost
    ) -> None:
        self._waited[op.index] = waited
        if scope.trace is None and scope.span is None:
            return
        upstream = sum(self._waited.get(s, 0.0) for s in op.node.sources)
        own = max(0.0, waited - upstream)
        served = min(cost.served_s, own) if op.heavy else own
        note = "no items" if first is None else f"first item after {first * 1e3:.1f} ms"
        if scope.trace is not None:
            scope.trace.record(op.name, began, began + own, cost.queued_s, served, note)
        if scope.span is not None:
            scope.span.cost(cost.queued_s, served)
            scope.span.attributes["headrace.note"] = note

    async def delivered(self, stream: Stream[Any]) -> AsyncGenerator[Any, None]:
        """The items of the graph's own stream, under the request's deadline and cancellation.

        Raises:
            RequestEnded: Deadline or cancellation came first.
        """
        while True:
            self.scope.check()
            try:
                item = await self.scope.in_time(anext(stream))
            except StopAsyncIteration:
                return
            yield item

    async def end(self) -> None:
        """Close every stream that the request opened, the last first. Idempotent."""
        while self._streams:
            await self._streams.pop().aclose()


def _root(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that made the others: the first of ours, else the first."""
    leaves: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(reversed(error.exceptions))
        else:
            leaves.append(error)
    return next((e for e in leaves if isinstance(e, HeadraceError)), leaves[0])
