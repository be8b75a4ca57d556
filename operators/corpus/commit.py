"""Group commit: writes that wait together share one transaction, and one wait for the disk."""

from __future__ import annotations

import asyncio
import copy
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from engine.errors import HeadraceError, StorageError
from engine.scope import Identity, current_scope
from operators.corpus.changes import Changes
from operators.corpus.store import Store

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_Outcome = tuple[Any, BaseException | None]  # what a write returned, or how it failed
_AT_ONCE = 64  # writes of one transaction


class _Write(NamedTuple):
    work: Callable[[Changes], Any]
    identity: Identity | None
    done: Future[Any]


class GroupCommit:
    """The one thread that changes a shard.

    A write that fails is undone by itself; the others of its transaction stand. A write is acknowledged when its
    transaction is on the disk (SQLite's WAL is synced) and `follow` has made it visible to searches.

    When that sync fails, or what follows it, SQLite takes the transaction back, and yet it lies whole in the WAL until
    another one is written over it: whoever opens the database before finds it. So the write is refused as in doubt, and
    `close` tries to write over it.

    Args:
        store: The connection that writes; nobody else uses it.
        follow: Called after each transaction.
        name: Of the thread.
    """

    def __init__(self, store: Store, follow: Callable[[], None], *, name: str) -> None:
        self._store = store
        self._follow = follow
        self._waiting: deque[_Write] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._in_doubt = False

    async def submit(self, work: Callable[[Changes], _Result]) -> _Result:
        """Carry out a write, in the order of submission, and return what it returned when it is durable.

        One that is cancelled before it begins is dropped; one that has begun is carried out.

        Raises:
            StorageError: The disk refused; nothing of it is stored, unless it says so.
        """
        done: Future[_Result] = Future()
        self._waiting.append(_Write(work, current_scope().identity, done))
        self._thread.submit(self._commit)
        return await asyncio.wrap_future(done)

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Run something else in the writing thread, after the writes that were submitted before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def start(self, work: Callable[[], object]) -> None:
        """As `run`, for what nobody waits for: that the disk refuses it is no news to those who write."""

        def try_to() -> None:
            try:
                work()
            except OSError:
                pass
            except Exception:  # noqa: BLE001 - told to who reads logs
                _log.exception("work of a shard that nobody waits for failed")

        self._thread.submit(try_to)

    def close(self) -> None:
        """Carry out what was submitted and end the thread."""
        self._thread.submit(self._settle_doubt)
        self._thread.shutdown()

    def _commit(self) -> None:
        """One transaction of what waits; those that came with an earlier call's transaction find nothing left."""
        writes = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
        writes = [w for w in writes if w.done.set_running_or_notify_cancel()]
        if not writes:
            return
        outcomes: list[_Outcome] = [(None, None)] * len(writes)
        try:
            with storage_errors("the change is not stored"):
                outcomes = self._transaction(writes)
            with storage_errors("the change is stored and its index will follow when there is room"):
                self._follow()
        except BaseException as error:  # noqa: BLE001 - handed to the callers, who wait for it
            outcomes = [(None, failure or _own(error)) for _, failure in outcomes]
        for write, (value, failure) in zip(writes, outcomes, strict=True):
            if failure is None:
                write.done.set_result(value)
            else:
                write.done.set_exception(failure)

    def _transaction(self, writes: list[_Write]) -> list[_Outcome]:
        db = self._store.db
        db.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [self._carry_out(write) for write in writes]
            self._end_transaction()
        except BaseException:
            if db.in_transaction:  # a full disk may have ended it already
                db.execute("ROLLBACK")
            raise
        return outcomes

    def _end_transaction(self) -> None:
        try:
            self._store.db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            # Or what follows the sync failed: only of an incomplete write it is known that it will not be found.
            code = error.sqlite_errorcode
            if code & 0xFF != sqlite3.SQLITE_IOERR or code == sqlite3.SQLITE_IOERR_WRITE:
                raise
            self._in_doubt = True
            raise StorageError(
                f"the disk took a write and would not confirm it ({error}): the change is not stored now, and may be "
                "found all the same when the shard is opened again before another change; repeat it on a sound disk",
                in_doubt=True,
            ) from error

    def _settle_doubt(self) -> None:
        """Writes over a transaction that may still lie in the WAL; a disk that refuses that, too, leaves the doubt."""
        db = self._store.db
        if self._in_doubt:
            with suppress(sqlite3.OperationalError):
                (version,) = db.execute("PRAGMA user_version").fetchone()
                db.execute(f"PRAGMA user_version = {version}")  # is written even though it is the same

    def _carry_out(self, write: _Write) -> _Outcome:
        db = self._store.db
        db.execute("SAVEPOINT one")
        try:
            value = write.work(Changes(self._store, write.identity))
        except BaseException as error:
            if _is_the_disks(error):  # so it is everybody's
                raise
            db.execute("ROLLBACK TO one")
            db.execute("RELEASE one")
            return None, error
        db.execute("RELEASE one")
        return value, None


def _own(error: BaseException) -> BaseException:
    """A copy for one of several who are told: each adds whose request it was."""
    if not isinstance(error, HeadraceError):
        return error
    told = copy.copy(error)
    told.__cause__ = error.__cause__
    return told


def _is_the_disks(error: BaseException) -> bool:
    """Whether SQLite failed to read or write, and it was not one statement, as when a function in a filter fails."""
    own = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
    return isinstance(error, sqlite3.OperationalError) and not own


@contextmanager
def storage_errors(outcome: str) -> Iterator[None]:
    """Tells the disk's refusals from everything else, in words.

    Raises:
        StorageError: SQLite or the system refused.
    """
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StorageError(f"the disk refused a write ({error}): {outcome}; make room, or make it writable") from error
