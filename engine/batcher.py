"""A worker thread that always takes the best batch of what waits at the moment it becomes free."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engine.batch import Batch, BatchLimits, Outcome, Request
from engine.batch_queue import BatcherStatistics, BatchQueue
from engine.clock import MONOTONIC, Clock
from engine.errors import HeadraceError, StageDied, StepFailed
from engine.meter import report_queued
from engine.scope import Scope, current_scope
from engine.spans import OpenSpan

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


# The error is the future's value, not its exception: one set for a caller who is just being cancelled would be reported
# as never retrieved.
_Waiter = asyncio.Future[BaseException | None]
_Answers = list[tuple[_Waiter, BaseException | None]]


def _one(_item: object) -> int:
    return 1


class Batcher(Generic[Item, Out]):
    """Joins items of concurrent requests into batches for one blocking function.

    There is no timer: a batch is formed when the worker is free, from all that waits then. So batches grow with the
    load, an idle batcher answers at once, and there is nothing to tune. engine/batch_queue.py tells who goes first.

    The worker thread forms its batches itself, under a lock that is never held while it runs one: a slow event loop
    delays answers, not the worker. Callers may sit in several event loops. An idle batcher runs nothing at all.

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
        self._waiters: dict[Request[Item], _Waiter] = {}
        self._lock = threading.Lock()  # guards the queue, the waiters and the two flags
        self._serving = False
        self._closed = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

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
        loop = asyncio.get_running_loop()
        waiter: _Waiter = loop.create_future()
        request = self._enter(items, scope, waiter)
        loop.call_soon(self._wake)  # not at once: requests that arrive together share the first batch
        try:
            error = await waiter
        finally:
            self._leave(request)
        if error is not None:
            raise error
        queued_s = max(0.0, self._clock.now() - request.entered - request.served_s)
        report_queued(queued_s, request.batch)
        results, request.results = request.results, []  # the queue may remember the request for a while
        return Timed(results, queued_s, request.served_s)

    async def aclose(self) -> None:
        """Refuse new work, fail what is queued with StageDied, wait for the batch that runs; repeating is harmless."""
        with self._lock:
            self._closed = True
            answers = self._abandon([r for r in self._waiters if r.queued and not r.ended], cause=None)
        _post(answers)
        await asyncio.to_thread(self._worker.shutdown)

    def statistics(self) -> BatcherStatistics:
        """Counters since the start."""
        with self._lock:
            return self._queue.statistics()

    def _enter(self, items: Sequence[Item], scope: Scope, waiter: _Waiter) -> Request[Item]:
        with self._lock:
            if self._closed:
                raise StageDied(f"{self._name} is closed: open another one", request_id=scope.id)
            request = self._queue.admit(items, scope, self._clock.now())
            self._waiters[request] = waiter
        return request

    def _leave(self, request: Request[Item]) -> None:
        with self._lock:
            del self._waiters[request]
            self._queue.drop(request, Outcome.CANCELLED)  # unless it has ended

    def _wake(self) -> None:
        with self._lock:
            if self._serving or self._closed:
                return
            self._serving = True
        self._worker.submit(self._serve)

    def _serve(self) -> None:
        """Run batches until nothing waits. This and what it calls run in the worker thread."""
        try:
            while (batch := self._form()) is not None:
                span = _span_of(batch, self._name)
                ran = self._run(batch.items)
                if span is not None:
                    span.end(ran.error)
                self._settle(batch, ran)
        except BaseException as defect:  # ours, or the clock's: nobody may be left waiting
            with self._lock:
                self._serving = False
                answers = self._abandon(list(self._waiters), cause=defect)
            _post(answers)
            raise

    def _form(self) -> Batch[Item] | None:
        with self._lock:
            batch, dropped = self._queue.form(self._clock.now())
            answers: _Answers = [(self._waiters[request], reason) for request, reason in dropped]
            self._serving = bool(batch.items)
        _post(answers)
        return batch if batch.items else None

    def _run(self, items: list[Item]) -> _Ran[Out]:
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
        with self._lock:
            if ran.error is None:
                ended = self._queue.complete(batch, ran.results, ran.seconds)
            else:
                ended = self._queue.fail(batch, ran.seconds)
            answers: _Answers = [(self._waiters[request], ran.error) for request in ended]
        _post(answers)

    def _abandon(self, requests: list[Request[Item]], cause: BaseException | None) -> _Answers:
        answers: _Answers = []
        for request in requests:
            self._queue.drop(request, Outcome.FAILED)
            error = StageDied(f"{self._name} stopped before all items ran", request_id=request.scope.id)
            error.__cause__ = cause
            answers.append((self._waiters[request], error))
        return answers


def _span_of(batch: Batch[Any], name: str) -> OpenSpan | None:
    """A span of the batch, with links to all its requests that have one; a part of the first, to be found there."""
    members = [request.scope.span for request in batch.requests if request.scope.span is not None]
    if not members:
        return None
    span = members[0].child(f"{name} batch", links=[member.context for member in members])
    span.attributes |= {
        "headrace.batch_items": len(batch.items),
        "headrace.batch_requests": len(batch.requests),
        "headrace.batch_cost": batch.cost,
        "headrace.batch_padded_cost": batch.padded_cost,
    }
    return span


def _post(answers: _Answers) -> None:
    """Wake callers in the event loops that they sit in."""
    by_loop: dict[asyncio.AbstractEventLoop, _Answers] = {}
    for waiter, error in answers:
        by_loop.setdefault(waiter.get_loop(), []).append((waiter, error))
    for loop, its_answers in by_loop.items():
        with contextlib.suppress(RuntimeError):  # that loop has been closed: nobody waits there any more
            loop.call_soon_threadsafe(_wake_callers, its_answers)


def _wake_callers(answers: _Answers) -> None:
    for waiter, error in answers:
        if not waiter.done():  # its caller is being cancelled
            waiter.set_result(_own(error))


def _own(error: BaseException | None) -> BaseException | None:
    """The error for one of several callers: a copy of ours, since the engine writes step and request id into it."""
    if not isinstance(error, HeadraceError):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own.with_traceback(error.__traceback__)
