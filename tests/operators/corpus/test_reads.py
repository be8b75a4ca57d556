"""Quick reads take turns on the event loop, threads help when many wait, and long reads never hold it up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from operators.corpus.reads import Reads
from operators.corpus.store import Store


@pytest.fixture
def reads(tmp_path: Path) -> Iterator[Reads]:
    made = Reads(lambda: Store(tmp_path / "store.sqlite"), 2, name="read")
    yield made
    made.close()


def where(store: Store) -> str:
    assert store.seq() == 0
    return threading.current_thread().name


async def test_a_quick_read_runs_on_the_loops_thread_and_a_long_one_in_another(reads: Reads) -> None:
    assert await reads.quick(where) == threading.current_thread().name
    assert (await reads.long(where)).startswith("read")


async def test_both_legs_of_one_question_need_no_thread(reads: Reads) -> None:
    here = threading.current_thread().name
    assert await asyncio.gather(reads.quick(where), reads.quick(where)) == [here, here]


async def test_a_thread_helps_when_many_wait_and_each_read_is_done_once(reads: Reads) -> None:
    done: list[int] = []
    helped = threading.Event()

    def read(number: int) -> int:
        if threading.current_thread() is threading.main_thread():
            helped.wait(0 if helped.is_set() else 10)  # the loop is slow until a thread has come
        else:
            helped.set()
        done.append(number)
        return number

    assert await asyncio.gather(*(reads.quick(lambda _, n=n: read(n)) for n in range(50))) == list(range(50))
    assert sorted(done) == list(range(50))
    assert helped.is_set()


async def test_the_loop_goes_on_between_quick_reads(reads: Reads) -> None:
    order: list[str] = []

    async def other() -> None:
        for _ in range(3):
            order.append("other")
            await asyncio.sleep(0)

    async def read() -> None:
        await reads.quick(lambda _: order.append("read"))

    await asyncio.gather(read(), read(), other())
    assert order.index("read") < 5
    assert "other" in order[order.index("read") :]


async def test_the_loop_goes_on_during_a_long_read(reads: Reads) -> None:
    go = threading.Event()
    reading = asyncio.create_task(reads.long(lambda _: go.wait(10)))
    await asyncio.sleep(0)
    go.set()
    assert await reading


async def test_a_failure_reaches_its_caller_alone(reads: Reads) -> None:
    def fail(_: Store) -> None:
        raise LookupError("gone")

    first, second, third, fourth = await asyncio.gather(
        reads.quick(fail), reads.quick(where), reads.long(fail), reads.quick(where), return_exceptions=True
    )
    assert isinstance(first, LookupError)
    assert isinstance(third, LookupError)
    assert isinstance(second, str)
    assert isinstance(fourth, str)


async def test_a_cancelled_quick_read_troubles_nobody(reads: Reads) -> None:
    first, cancelled, kept = (asyncio.create_task(reads.quick(where)) for _ in range(3))
    await asyncio.sleep(0)  # the first is done, the others wait for their turn
    cancelled.cancel()
    assert {await first, await kept} == {threading.current_thread().name}
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_both_reads_of_a_question_run_at_once_the_longer_one_on_the_loops_thread(reads: Reads) -> None:
    met = threading.Barrier(2, timeout=10)  # passed only by two that run at once

    def meet(store: Store) -> str:
        met.wait()
        return where(store)

    longer, other = await asyncio.gather(reads.beside(meet), reads.quick(meet))
    assert (longer, other.startswith("read")) == (threading.current_thread().name, True)
    assert len(await asyncio.gather(*(reads.beside(where) for _ in range(20)))) == 20


async def test_a_longer_read_that_comes_alone_leaves_the_loop_free(reads: Reads) -> None:
    assert (await reads.beside(where)).startswith("read")


async def test_a_cancelled_longer_read_troubles_nobody(reads: Reads) -> None:
    longer, other = asyncio.create_task(reads.beside(where)), asyncio.create_task(reads.quick(where))
    await asyncio.sleep(0)
    longer.cancel()
    assert await other
    with pytest.raises(asyncio.CancelledError):
        await longer


async def test_quick_reads_that_wait_are_ended_before_all_is_closed(tmp_path: Path) -> None:
    reads = Reads(lambda: Store(tmp_path / "store.sqlite"), 2, name="read")
    waiting = [asyncio.create_task(reads.quick(where)) for _ in range(5)]
    await asyncio.sleep(0)
    await reads.ended()
    await asyncio.to_thread(reads.close)
    assert len(await asyncio.gather(*waiting)) == 5
