"""engine/batcher.py: the worker thread, and what callers see of it."""

from __future__ import annotations

import asyncio
import doctest
import threading
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.batcher
from engine.batcher import Batcher, BatchLimits
from engine.clock import VirtualClock, settle
from engine.errors import Cancelled, DeadlineExceeded, QueueFull, StageDied, StepFailed
from engine.meter import metered
from engine.scope import Scope, entered

LIMITS = BatchLimits(max_cost=4, micro_chunk=2)


class Worker:
    """An execute that upper-cases, keeps its batches, and holds each of them until released once `held`."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.held = False
        self.threads: set[str] = set()
        self.on_batch: Callable[[], object] = lambda: None
        self._released = threading.Semaphore(0)

    def __call__(self, items: list[str]) -> list[str]:
        self.threads.add(threading.current_thread().name)
        self.batches.append(items)
        self.on_batch()
        if self.held:
            assert self._released.acquire(timeout=10)
        return [item.upper() for item in items]

    def release(self, batches: int = 1) -> None:
        self._released.release(batches)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def busy(batcher: Batcher[str, str], worker: Worker) -> asyncio.Task[list[str]]:
    """Occupy the worker with a batch of its own until it is released."""
    worker.held = True
    task = asyncio.create_task(batcher.submit(["busy"]))
    await until(lambda: worker.batches[-1:] == [["busy"]])
    return task


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def batcher(worker: Worker, clock: VirtualClock) -> AsyncIterator[Batcher[str, str]]:
    opened = Batcher(worker, limits=LIMITS, name="upper", clock=clock)
    yield opened
    worker.release(100)
    await opened.aclose()
    assert not opened._waiters


async def test_results_come_in_the_order_of_the_items(batcher: Batcher[str, str]):
    assert await batcher.submit(list("abcdefghij")) == list("ABCDEFGHIJ")


async def test_no_items_run_nothing(batcher: Batcher[str, str], worker: Worker):
    assert await batcher.submit([]) == []
    assert worker.batches == []
    assert batcher.statistics().submitted == 0


async def test_requests_that_arrive_together_share_the_first_batch(batcher: Batcher[str, str], worker: Worker):
    assert await asyncio.gather(*(batcher.submit([x]) for x in "abc")) == [["A"], ["B"], ["C"]]
    assert worker.batches == [["a", "b", "c"]]


async def test_an_idle_batcher_does_not_wait_for_company(batcher: Batcher[str, str], worker: Worker):
    await batcher.submit(["a"])
    await batcher.submit(["b"])
    assert worker.batches == [["a"], ["b"]]


async def test_the_next_batch_is_formed_when_the_worker_is_free(batcher: Batcher[str, str], worker: Worker):
    first = await busy(batcher, worker)
    others = [asyncio.create_task(batcher.submit([x])) for x in "abc"]
    await settle()
    late = asyncio.create_task(batcher.submit(["d"], Scope(timeout_s=1)))
    await settle()
    worker.release(2)
    assert await asyncio.gather(first, *others, late) == [["BUSY"], ["A"], ["B"], ["C"], ["D"]]
    assert worker.batches == [["busy"], ["d", "a", "b", "c"]]


async def test_ten_small_requests_are_served_before_the_rest_of_500_items(worker: Worker):
    batcher = Batcher(worker, limits=BatchLimits(max_cost=32))
    first = await busy(batcher, worker)
    large = asyncio.create_task(batcher.submit([f"large {n}" for n in range(500)]))
    await settle()
    small = [asyncio.create_task(batcher.submit([f"small {n}"])) for n in range(10)]
    await settle()
    worker.release(2)
    await asyncio.gather(first, *small)
    assert not large.done()
    worker.release(100)
    assert await large == [f"LARGE {n}" for n in range(500)]
    await batcher.aclose()


async def test_execute_runs_in_one_thread_of_the_batchers_name(batcher: Batcher[str, str], worker: Worker):
    await asyncio.gather(*(batcher.submit(["a"] * 5) for _ in range(5)))
    assert worker.threads == {"upper_0"}


async def test_an_idle_batcher_owns_no_task(batcher: Batcher[str, str]):
    await batcher.submit(["a"])
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_a_call_withdraws_what_has_not_begun(batcher: Batcher[str, str], worker: Worker):
    first = await busy(batcher, worker)
    waiting = asyncio.create_task(batcher.submit(["a"]))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    worker.release()
    assert await first == ["BUSY"]
    await settle()
    assert worker.batches == [["busy"]]
    assert batcher.statistics().dropped_cancelled == 1


async def test_cancelling_a_call_whose_batch_runs_disturbs_nobody_in_it(batcher: Batcher[str, str], worker: Worker):
    worker.held = True
    calls = [asyncio.create_task(batcher.submit([x])) for x in "ab"]
    await until(lambda: worker.batches == [["a", "b"]])
    calls[0].cancel()
    await settle()
    worker.release()
    assert await calls[1] == ["B"]
    assert calls[0].cancelled()


async def test_a_scope_cancelled_while_queued_raises_cancelled(batcher: Batcher[str, str], worker: Worker):
    first = await busy(batcher, worker)
    scope = Scope("r1")
    waiting = asyncio.create_task(batcher.submit(["a"], scope))
    await settle()
    scope.cancel()
    worker.release()
    with pytest.raises(Cancelled, match="upper: the request was cancelled") as cancelled:
        await waiting
    assert cancelled.value.request_id == "r1"
    await first
    assert worker.batches == [["busy"]]


async def test_expired_work_raises_deadline_exceeded_and_never_runs(
    batcher: Batcher[str, str], worker: Worker, clock: VirtualClock
):
    first = await busy(batcher, worker)
    waiting = asyncio.create_task(batcher.submit(["a"], Scope("r2", timeout_s=1, clock=clock)))
    await clock.advance(1)
    worker.release()
    with pytest.raises(DeadlineExceeded, match=r"upper: the time was spent 1\.000 s after queueing") as expired:
        await waiting
    assert expired.value.request_id == "r2"
    await first
    assert worker.batches == [["busy"]]


async def test_a_scope_that_has_ended_is_refused_at_once(batcher: Batcher[str, str], worker: Worker):
    scope = Scope()
    scope.cancel()
    with pytest.raises(Cancelled):
        await batcher.submit(["a"], scope)
    assert worker.batches == []


async def test_the_current_scope_is_the_default(batcher: Batcher[str, str], worker: Worker):
    first = await busy(batcher, worker)
    with entered(Scope("r3")) as scope:
        waiting = asyncio.create_task(batcher.submit(["a"]))
    await settle()
    scope.cancel()
    worker.release()
    with pytest.raises(Cancelled) as cancelled:
        await waiting
    assert cancelled.value.request_id == "r3"
    await first


class Failing(Worker):
    """Raises `error` for a batch with the item "bad"."""

    error: BaseException = ZeroDivisionError("of our own")

    def __call__(self, items: list[str]) -> list[str]:
        results = super().__call__(items)
        if "bad" in items:
            raise self.error
        return results


async def test_an_exception_fails_the_requests_of_its_batch_and_no_other():
    failing = Failing()
    batcher = Batcher(failing, limits=LIMITS)
    calls = [["bad"], ["a", "b", "c"], ["d"]]
    outcomes = await asyncio.gather(*(batcher.submit(call) for call in calls), return_exceptions=True)
    assert failing.batches == [
        ["bad", "a", "b", "d"]
    ]  # "c" is a second turn and is dropped with the rest of its request
    assert outcomes == [failing.error] * 3
    assert await batcher.submit(["e"]) == ["E"]
    assert batcher.statistics().failed == 3
    await batcher.aclose()


async def test_each_caller_gets_its_own_copy_of_an_error_of_ours():
    failing = Failing()
    failing.error = StepFailed("embed", kind="X", text="y")
    failing.error.__cause__ = cause = ValueError()
    batcher = Batcher(failing, limits=LIMITS)
    first, second = await asyncio.gather(batcher.submit(["bad"]), batcher.submit(["a"]), return_exceptions=True)
    assert isinstance(first, StepFailed)
    assert isinstance(second, StepFailed)
    first.placed("rerank", "r1")
    assert (second.request_id, second.kind, second.__cause__) == (None, "X", cause)
    await batcher.aclose()


async def test_stop_iteration_in_execute_does_not_hang_its_callers():
    failing = Failing()
    failing.error = StopIteration()
    batcher = Batcher(failing, limits=LIMITS)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(batcher.submit(["bad"]), 5)
    await batcher.aclose()


async def test_a_wrong_number_of_results_is_named():
    batcher: Batcher[str, str] = Batcher(lambda items: items[1:], limits=LIMITS, name="embedder")
    with pytest.raises(
        StepFailed, match="execute returned 2 results for 3 items; it must return one per item"
    ) as wrong:
        await batcher.submit(["a", "b", "c"])
    assert wrong.value.step == "embedder"
    await batcher.aclose()


async def test_a_full_queue_refuses_and_recovers(worker: Worker):
    batcher = Batcher(worker, limits=BatchLimits(max_cost=4, max_queued_cost=4))
    first = await busy(batcher, worker)
    queued = asyncio.create_task(batcher.submit(["a"] * 4))
    await settle()
    with pytest.raises(QueueFull) as full:
        await batcher.submit(["b"])
    assert full.value.retry_after_s > 0
    worker.release(3)
    await asyncio.gather(first, queued)
    assert await batcher.submit(["b"]) == ["B"]
    await batcher.aclose()


async def test_a_cost_function_that_raises_reaches_its_caller_only(worker: Worker):
    batcher = Batcher(worker, limits=LIMITS, cost=len)
    with pytest.raises(TypeError):
        await batcher.submit([5])  # type: ignore[list-item] # the mistake under test
    assert await batcher.submit(["a"]) == ["A"]
    await batcher.aclose()


async def test_time_queued_and_served_is_told_and_metered(
    batcher: Batcher[str, str], worker: Worker, clock: VirtualClock
):
    first = await busy(batcher, worker)
    with metered() as meter:
        timed = asyncio.create_task(batcher.submit_timed(["a", "b"]))
    await clock.advance(3)  # queued
    worker.release()
    await until(lambda: len(worker.batches) == 2)
    await clock.advance(2)  # served
    worker.release()
    told = await timed
    assert (told.results, told.queued_s, told.served_s) == (["A", "B"], 3.0, 2.0)
    assert meter.queued_s == 3.0
    await first


async def test_closing_fails_what_is_queued_and_lets_the_running_batch_finish(
    batcher: Batcher[str, str], worker: Worker
):
    first = await busy(batcher, worker)
    waiting = asyncio.create_task(batcher.submit(["a"]))
    await settle()
    closing = asyncio.create_task(batcher.aclose())
    with pytest.raises(StageDied, match="upper stopped before all items ran"):
        await waiting
    assert not closing.done()
    worker.release()
    assert await first == ["BUSY"]
    await closing
    assert worker.batches == [["busy"]]


async def test_a_closed_batcher_refuses_work_and_may_be_closed_again(batcher: Batcher[str, str]):
    await batcher.submit(["a"])
    await batcher.aclose()
    await batcher.aclose()
    with pytest.raises(StageDied, match="upper is closed"):
        await batcher.submit(["a"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("upper")]


def test_one_batcher_serves_event_loops_one_after_another(worker: Worker):
    batcher = Batcher(worker, limits=LIMITS)
    assert [asyncio.run(batcher.submit([x])) for x in "ab"] == [["A"], ["B"]]
    asyncio.run(batcher.aclose())


def test_an_event_loop_that_ends_amid_a_batch_leaves_the_batcher_usable(worker: Worker):
    batcher = Batcher(worker, limits=LIMITS)
    calls: list[asyncio.Task[list[str]]] = []

    async def leave() -> None:
        calls.append(await busy(batcher, worker))
        calls.append(asyncio.create_task(batcher.submit(["queued"])))
        await settle()

    asyncio.run(leave())
    assert all(call.cancelled() for call in calls)
    worker.held = False
    worker.release()
    assert asyncio.run(batcher.submit(["a"])) == ["A"]
    assert worker.batches == [["busy"], ["a"]]
    assert batcher.statistics().waiting == 0
    asyncio.run(batcher.aclose())


async def test_callers_in_several_event_loops_share_the_worker(batcher: Batcher[str, str], worker: Worker):
    first = await busy(batcher, worker)
    elsewhere = asyncio.create_task(asyncio.to_thread(asyncio.run, batcher.submit(["a"])))
    here = asyncio.create_task(batcher.submit(["b"]))
    await until(lambda: batcher.statistics().waiting == 3)
    worker.release(2)
    assert await asyncio.gather(first, elsewhere, here) == [["BUSY"], ["A"], ["B"]]
    assert len(worker.batches) == 2


async def test_a_stalled_event_loop_does_not_stall_the_worker(batcher: Batcher[str, str], worker: Worker):
    first = await busy(batcher, worker)
    calls = [asyncio.create_task(batcher.submit(["a"] * 4)) for _ in range(3)]
    await settle()
    worker.release(4)
    finished = threading.Event()
    worker.on_batch = lambda: len(worker.batches) == 4 and finished.set()
    assert finished.wait(timeout=10)  # in the event loop, on purpose: it stands still meanwhile
    await asyncio.gather(first, *calls)


class BrokenClock(VirtualClock):
    """Raises when the worker thread reads it, once broken."""

    broken = False

    def now(self) -> float:
        if self.broken and threading.current_thread() is not threading.main_thread():
            raise OSError("no time")
        return super().now()


async def test_a_defect_in_the_worker_leaves_nobody_waiting(worker: Worker):
    clock = BrokenClock()
    batcher = Batcher(worker, limits=LIMITS, clock=clock)
    clock.broken = True
    with pytest.raises(StageDied, match="batcher stopped before all items ran") as died:
        await batcher.submit(["a"])
    assert isinstance(died.value.__cause__, OSError)
    clock.broken = False
    assert await batcher.submit(["b"]) == ["B"]
    await batcher.aclose()


async def test_rows_of_an_array_are_results():
    batcher: Batcher[float, np.ndarray] = Batcher(lambda rows: np.outer(rows, [1, 10]), limits=LIMITS)
    rows = await batcher.submit([1.0, 2.0, 3.0])
    assert [row.tolist() for row in rows] == [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]
    await batcher.aclose()


@settings(max_examples=30, deadline=None)
@given(
    calls=st.lists(st.lists(st.integers(1, 40), max_size=12), max_size=8),
    limits=st.builds(
        BatchLimits, max_cost=st.integers(1, 100), max_items=st.integers(1, 9), micro_chunk=st.integers(1, 5)
    ),
)
def test_joined_requests_get_what_each_would_get_alone(calls: list[list[int]], limits: BatchLimits):
    async def run() -> None:
        batcher: Batcher[int, int] = Batcher(lambda items: [item * item for item in items], limits=limits, cost=int)
        answers = await asyncio.gather(*(batcher.submit(call) for call in calls))
        assert answers == [[item * item for item in call] for call in calls]
        await batcher.aclose()

    asyncio.run(run())


async def test_a_hundred_calls_cancelled_at_random_moments_leave_nothing(worker: Worker):
    batcher = Batcher(worker, limits=LIMITS)
    calls = [asyncio.create_task(batcher.submit([f"{n}"] * (1 + n % 5))) for n in range(100)]
    for n, call in enumerate(calls):
        if n % 3 == 0:
            call.cancel()
        if n % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*calls, return_exceptions=True)
    await settle()
    assert not batcher._waiters
    assert (batcher.statistics().waiting, batcher.statistics().queued_cost) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await batcher.aclose()


def test_the_example_in_the_docstring_runs():
    tried = doctest.testmod(engine.batcher, extraglobs={"asyncio": asyncio})
    assert (tried.attempted, tried.failed) == (2, 0)
