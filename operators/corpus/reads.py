"""Where a shard's reads run: quick ones on the event loop's own thread, the others in threads."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from operators.corpus.store import Store

_Result = TypeVar("_Result")
Work = Callable[[Store], _Result]

_ALONE = 2  # quick reads that the loop does by itself: both legs of one question


class _Quick(NamedTuple):
    work: Work[Any]
    done: asyncio.Future[Any]
    beside: bool


class Reads:
    """Runs reads, each with a connection to the database that no other read has meanwhile.

    A hybrid search is three reads of a millisecond or less. Waking a thread for each, and the loop for each result,
    takes as long as they do. So quick reads are done by the loop, one in each of its turns, the first at once; when
    more wait than one question brings, a thread takes them, too, until none is left. Two of one question that come
    together are done at once, the one that takes longer by the loop, which so need not be woken for it. Long reads go
    to threads at once.

    To be used by one event loop at a time.

    Args:
        connect: Opens a connection.
        threads: How many there may be.
        name: Of the threads.
    """

    def __init__(self, connect: Callable[[], Store], threads: int, *, name: str) -> None:
        self._own = connect()  # the loop's
        self._idle: queue.SimpleQueue[Store] = queue.SimpleQueue()
        for _ in range(threads):
            self._idle.put(connect())
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting: deque[_Quick] = deque()
        self._turn: asyncio.Handle | None = None  # the loop's next one
        self._helped = False

    @property
    def own(self) -> Store:
        """The event loop's connection: for what takes microseconds."""
        return self._own

    async def quick(self, work: Work[_Result]) -> _Result:
        """What a read returns that takes a few milliseconds at most, during which the loop may do nothing else."""
        if self._turn is None and not self._waiting:
            self._plan_turn()  # what comes before the loop has looked around waits
            return work(self._own)
        return await self._put(work)

    async def beside(self, work: Work[_Result]) -> _Result:
        """As `quick`, for one that takes longer than another one of the same question.

        By the loop while a thread does the other one, if that is there when the loop has looked around; else in the
        thread, so that the other one need not wait.
        """
        return await self._put(work, beside=True)

    def _put(self, work: Work[_Result], *, beside: bool = False) -> asyncio.Future[_Result]:
        done: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Quick(work, done, beside))
        self._plan_turn()
        return done

    async def long(self, work: Work[_Result]) -> _Result:
        """What a read returns that may take longer."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._apart, work)

    async def ended(self) -> None:
        """Returns when every quick read that waits now was done, or was taken by a thread."""
        await self.quick(lambda _: None)

    def close(self) -> None:
        """Closes the connections when all reads have ended. Not to be called by the loop, which ends the quick ones."""
        self._threads.shutdown()
        self._own.close()
        while not self._idle.empty():
            self._idle.get().close()

    def _apart(self, work: Work[_Result]) -> _Result:
        store = self._idle.get()
        try:
            return work(store)
        finally:
            self._idle.put(store)

    def _plan_turn(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        if len(self._waiting) > _ALONE and not self._helped:
            self._call_help(None)
        read = self._next()
        if read is not None and read.beside and not self._helped:
            other = self._next()
            self._call_help(other or read)
            read = read if other else None
        if read is not None:
            _settle(read.done, *_outcome(read.work, self._own))
        if self._waiting:
            self._plan_turn()

    def _call_help(self, first: _Quick | None) -> None:
        self._helped = True
        self._threads.submit(self._apart, partial(self._help, first))

    def _next(self) -> _Quick | None:
        try:
            return self._waiting.popleft()
        except IndexError:  # a thread took the last one
            return None

    def _help(self, first: _Quick | None, store: Store) -> None:
        """Takes reads, that one first, until none waits. In a thread."""
        read = first or self._next()
        while read is not None:
            outcome = _outcome(read.work, store)
            read.done.get_loop().call_soon_threadsafe(_settle, read.done, *outcome)
            read = self._next()
        self._helped = False  # one that comes at this moment wakes a thread of its own


def _outcome(work: Work[Any], store: Store) -> tuple[Any, BaseException | None]:
    try:
        return work(store), None
    except Exception as error:  # noqa: BLE001 - handed to the caller, who waits for it
        return None, error


def _settle(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if done.done():  # cancelled meanwhile
        return
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)
