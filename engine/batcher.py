"""A worker thread that always takes the best batch of what waits at the moment it becomes free."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.batch import Batch, BatchLimits, Outcome, Request
from engine.batch_queue import BatcherStatistics, BatchQueue
from engine.clock import MONOTONIC, Clock
from engine.errors import HeadraceError, InvalidInput, StageDied, StepFailed
from engine.meter import report_queued
from engine.scope import Scope, current_scope

__all__ = ["BatchLimits", "Batcher", "BatcherStatistics", "Timed"]

Item = TypeVar("Item")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Timed(Generic[Out]):
    """The results of one submit and where its time went, in seconds.

    `served_s` is the time in which a batch with items of this submit ran, `queued_s` all the rest of it.
    """

    results: list[Out]
    queued_s: float
    served_s: float


@dataclass(frozen=True, slots=True)
class _Ran(Generic[Out]):
    """What came of a batch: results, one per item, or the error."""

    results: Sequence[Out]
    error: BaseException | None
    seconds: float


def _one(_item: object) -> int:
    return 1


class Batcher(Generic[Item, Out]):
    """Joins items of concurrent requests into batches for one blocking function.

    There is no timer: a batch is formed when the worker is free, from all that waits then. So batches grow with the
    load, an idle batcher answers at once, and there is nothing to tune. engine/batch_queue.py tells who goes first.

    Use it from one event loop at a time. Between batches and while idle it owns no task that could leak.

    Args:
        execute: Called in the worker thread with the items of a batch; returns one result per item, in their order.
            If it raises, the requests in that batch fail with that exception and the batcher lives on.
        limits: Sizes of a batch and of the queue.
        cost: Cost of an item in the unit of the limits, 1 or more; called in the event loop, so it must be quick.
        name: Names the thread and begins messages.
        clock: Source of time.

    Example:
        >>> async def main() -> list[str]:
        ...     batcher = Batcher(lambda words: [word.upper() for word in words], limits=BatchLimits(max_cost=32))
        ...     answers = await asyncio.gather(batcher.submit(["a", "b"]), batcher.submit(["c"]))
        ...     await batcher.aclose()
        ...     return [*answers, f"{batcher.statistics().batches} batch"]
        >>> asyncio.run(main())
        [['A', 'B'], ['C'], '1 batch']
    """

    def __init__(
        self,
        execute: Callable[[list[Item]], Sequence[Out]],
        *,
        limits: BatchLimits,
        cost: Callable[[Item], int] = _one,
        name: str = "batcher",
        clock: Clock = MONOTONIC,
    ) -> None:
        self._execute = execute
        self._name = name
        self._clock = clock
        self._queue: BatchQueue[Item] = BatchQueue(limits, cost=cost, name=name)
        self._waiters: dict[Request[Item], asyncio.Future[BaseException | None]] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._serving: asyncio.Task[None] | None = None
        self._closed = False

    async def submit(self, items: Sequence[Item], scope: Scope | None = None) -> list[Out]:
        """Run `items` in batches with those of other callers.

        Cancelling the call withdraws what has not begun to run. Once it has begun, a batch runs to its end.

        Args:
            items: Any number; none returns [] without running anything.
            scope: Gives deadline, priority and cancellation; the current scope when absent.

        Returns:
            One result per item, in the order of `items`.

        Raises:
            Cancelled: The scope was cancelled before all items ran.
            DeadlineExceeded: The scope's time was spent before all items ran; noticed when a batch is formed.
            QueueFull: Too much is queued; says when to try again.
            StageDied: The batcher is or was closed.
            StepFailed: `execute` returned the wrong number of results.
            Exception: Whatever `execute` raised.
        """
        return (await self.submit_timed(items, scope)).results

    async def submit_timed(self, items: Sequence[Item], scope: Scope | None = None) -> Timed[Out]:
        """As `submit`, and tells how long the items were queued and served; the queued time is also metered."""
        if len(items) == 0:
            return Timed([], 0.0, 0.0)
        if scope is None:
            scope = current_scope()
        scope.check()
        self._refuse_misuse()
        waiter: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        request = self._queue.admit(items, scope, self._clock.now())
        self._waiters[request] = waiter
        self._wake()
        try:
            error = await waiter
        finally:
            del self._waiters[request]
            self._queue.drop(request, Outcome.CANCELLED)  # unless it has ended
        if error is not None:
            raise error
        queued_s = max(0.0, self._clock.now() - request.entered - request.served_s)
        report_queued(queued_s)
        results, request.results = request.results, []  # the queue may remember the request for a while
        return Timed(results, queued_s, request.served_s)

    async def aclose(self) -> None:
        """Refuse new work, fail what is queued with StageDied, wait for the batch that runs; repeating is harmless."""
        self._closed = True
        self._abandon([request for request in self._waiters if request.queued])
        if self._serving is not None and not self._serving.done():
            await asyncio.wait([self._serving])
        await asyncio.to_thread(self._worker.shutdown)

    def statistics(self) -> BatcherStatistics:
        """Counters since the start."""
        return self._queue.statistics()

    def _wake(self) -> None:
        """Have somebody serve the queue.

        A new task first runs when the loop comes round, so requests that arrive together share the first batch. It
        inherits no context, since a batch belongs to no single request.
        """
        if self._serving is None or self._serving.done():
            self._serving = asyncio.get_running_loop().create_task(self._serve(), name=self._name, context=Context())

    async def _serve(self) -> None:
        """Run batches until nothing waits."""
        loop = asyncio.get_running_loop()
        try:
            while (batch := self._form()).items:
                self._settle(batch, await loop.run_in_executor(self._worker, self._run, batch.items))
        except BaseException:  # the loop shuts down, or a defect of ours: nobody may be left waiting
            self._abandon(list(self._waiters))
            raise

    def _form(self) -> Batch[Item]:
        batch, dropped = self._queue.form(self._clock.now())
        for request, reason in dropped:
            self._answer(request, reason)
        return batch

    def _run(self, items: list[Item]) -> _Ran[Out]:
        """Runs in the worker thread."""
        results: Sequence[Out] = ()
        error: BaseException | None = None
        began = self._clock.now()
        try:
            results = self._execute(items)
            self._check_count(results, items)
        except BaseException as raised:  # noqa: BLE001 - the supervisor boundary: every caller in the batch raises it
            error = raised
        return _Ran(results, error, self._clock.now() - began)

    def _check_count(self, results: Sequence[Out], items: list[Item]) -> None:
        if len(results) != len(items):
            text = (
                f"execute returned {len(results)} results for {len(items)} items; it must return one per item, in order"
            )
            raise StepFailed(self._name, kind="builtins.ValueError", text=text)

    def _settle(self, batch: Batch[Item], ran: _Ran[Out]) -> None:
        if ran.error is None:
            for request in self._queue.complete(batch, ran.results, ran.seconds):
                self._answer(request, None)
        else:
            for request in self._queue.fail(batch, ran.seconds):
                self._answer(request, _own(ran.error))

    def _answer(self, request: Request[Item], error: BaseException | None) -> None:
        # The error travels as a value: an exception set on the future of a caller who is just being cancelled would be
        # reported as never retrieved.
        waiter = self._waiters[request]
        if not waiter.done():
            waiter.set_result(error)

    def _abandon(self, requests: list[Request[Item]]) -> None:
        for request in requests:
            self._queue.drop(request, Outcome.FAILED)
            error = StageDied(f"{self._name} was closed before all items ran", request_id=request.scope.id)
            self._answer(request, error)

    def _refuse_misuse(self) -> None:
        if self._closed:
            raise StageDied(f"{self._name} is closed: open another one")
        serving = self._serving
        if serving is not None and not serving.done() and serving.get_loop() is not asyncio.get_running_loop():
            raise InvalidInput(f"{self._name} serves another event loop: give each loop a batcher of its own")


def _own(error: BaseException) -> BaseException:
    """The error for one of several callers: a copy of ours, since the engine writes step and request id into it."""
    if not isinstance(error, HeadraceError):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own.with_traceback(error.__traceback__)
