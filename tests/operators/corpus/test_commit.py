import asyncio
import pickle
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import InvalidInput, StorageError
from engine.scope import Identity, Scope, entered
from operators.corpus.changes import Changes
from operators.corpus.commit import GroupCommit
from operators.corpus.filter_sql import Condition
from operators.corpus.listing import list_documents
from operators.corpus.store import Store
from operators.messages import Listing


class Following:
    """What the commits are followed by, and what has become visible."""

    def __init__(self) -> None:
        self.calls = 0
        self.failure: Exception | None = None

    def __call__(self) -> None:
        self.calls += 1
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def following() -> Following:
    return Following()


@pytest.fixture
def commits(store: Store, following: Following) -> Iterator[GroupCommit]:
    commits = GroupCommit(store, following, name="test")
    yield commits
    commits.close()


def ids(store: Store) -> list[str]:
    return sorted(d.id for d in list_documents(store, Listing(), None).documents)


def held(commits: GroupCommit) -> tuple[asyncio.Future[bool], threading.Event]:
    """A task that keeps the writing thread busy until the event is set."""
    free = threading.Event()
    return asyncio.ensure_future(commits.run(free.wait)), free


async def test_writes_that_wait_together_share_a_transaction(store, commits, following, make) -> None:
    held_task, free = held(commits)
    await asyncio.sleep(0)
    writes = [asyncio.ensure_future(commits.submit(lambda c, n=n: c.write([make(f"d{n}", "x")], ""))) for n in range(9)]
    await asyncio.sleep(0)
    free.set()
    await held_task
    assert [(await w)[0].outcome for w in writes] == ["added"] * 9
    assert following.calls == 1
    assert len(ids(store)) == 9


async def test_a_write_that_fails_leaves_its_neighbours_alone(store, commits, make) -> None:
    def broken(changes: Changes) -> None:
        changes.write([make("half", "x")], "")
        raise InvalidInput("no")

    held_task, free = held(commits)
    await asyncio.sleep(0)
    first = asyncio.ensure_future(commits.submit(lambda c: c.write([make("a", "x")], "")))
    bad = asyncio.ensure_future(commits.submit(broken))
    last = asyncio.ensure_future(commits.submit(lambda c: c.write([make("b", "x")], "")))
    await asyncio.sleep(0)
    free.set()
    await held_task
    with pytest.raises(InvalidInput, match="no"):
        await bad
    await asyncio.gather(first, last)
    assert ids(store) == ["a", "b"]


async def test_a_write_that_is_given_up_before_it_begins_is_dropped(store, commits, make) -> None:
    held_task, free = held(commits)
    await asyncio.sleep(0)
    write = asyncio.ensure_future(commits.submit(lambda c: c.write([make("a", "x")], "")))
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    free.set()
    await held_task
    await commits.run(lambda: None)
    assert ids(store) == []


async def test_the_identity_of_each_request_goes_with_its_write(store, commits, make) -> None:
    with entered(Scope(identity=Identity("ann"))):
        await commits.submit(lambda c: c.write([make("a", "x")], ""))
    await commits.submit(lambda c: c.write([make("b", "x")], ""))
    assert [d.owner for d in sorted(list_documents(store, Listing(), None).documents, key=lambda d: d.id)] == [
        "ann",
        "",
    ]


@pytest.mark.parametrize("failure", [sqlite3.OperationalError("disk I/O error"), OSError(28, "No space left")])
async def test_a_disk_that_refuses_is_told_and_does_not_end_the_writer(
    store, commits, following, make, failure: Exception
) -> None:
    def refused(_: Changes) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(StorageError, match=r"database or disk is full.*not stored; make room"):
        await commits.submit(refused)
    following.failure = failure
    with pytest.raises(StorageError, match="the change is stored and its index will follow"):
        await commits.submit(lambda c: c.write([make("a", "x")], ""))
    following.failure = None
    await commits.submit(lambda c: c.write([make("b", "x")], ""))
    assert ids(store) == ["a", "b"]


async def test_a_statement_that_cannot_be_run_leaves_its_neighbours_alone(store, commits, make) -> None:
    def broken(changes: Changes) -> None:
        changes.write([make("half", "x")], "")
        changes.delete_where(Condition("json_same(d.id, 'no JSON')", []))

    held_task, free = held(commits)
    await asyncio.sleep(0)
    bad = asyncio.ensure_future(commits.submit(broken))
    good = asyncio.ensure_future(commits.submit(lambda c: c.write([make("a", "x")], "")))
    await asyncio.sleep(0)
    free.set()
    await held_task
    with pytest.raises(sqlite3.OperationalError, match="user-defined function raised exception"):
        await bad
    await good
    assert ids(store) == ["a"]


async def test_a_write_that_was_refused_is_never_told_that_it_is_stored(store, commits, following, make) -> None:
    def refused(_: Changes) -> None:
        raise InvalidInput("no")

    held_task, free = held(commits)
    await asyncio.sleep(0)
    following.failure = OSError(28, "No space left")
    bad = asyncio.ensure_future(commits.submit(refused))
    good = asyncio.ensure_future(commits.submit(lambda c: c.write([make("a", "x")], "")))
    await asyncio.sleep(0)
    free.set()
    await held_task
    with pytest.raises(InvalidInput, match="no"):
        await bad
    with pytest.raises(StorageError, match="the change is stored"):
        await good


class _Unconfirmed:
    """A connection whose disk fails COMMIT, as SQLite tells it."""

    def __init__(self, db: sqlite3.Connection, code: int) -> None:
        self._db = db
        self.code = code

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return self._db.execute(sql, *parameters)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self.code
        raise error


async def test_a_commit_whose_frames_are_not_all_written_is_told_as_not_stored(
    store, commits, make, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store, "db", _Unconfirmed(store.db, sqlite3.SQLITE_IOERR_WRITE))
        with pytest.raises(StorageError, match="the change is not stored; make room") as told:
            await commits.submit(lambda c: c.write([make("a", "x")], ""))
    assert not told.value.in_doubt


async def test_each_of_several_that_are_refused_has_an_error_of_its_own(store, commits, make, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store, "db", _Unconfirmed(store.db, sqlite3.SQLITE_FULL))
        held_task, free = held(commits)
        await asyncio.sleep(0)
        writes = [commits.submit(lambda c, n=n: c.write([make(f"d{n}", "x")], "")) for n in range(2)]
        told = asyncio.gather(*writes, return_exceptions=True)
        await asyncio.sleep(0)
        free.set()
        await held_task
        first, second = await told
    assert type(first) is type(second) is StorageError
    assert first is not second
    assert first.message == second.message
    assert first.placed("write", "r1").request_id == "r1"
    assert second.request_id is None


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_SHMSIZE])
async def test_a_commit_that_the_disk_does_not_confirm_is_told_as_in_doubt(
    store, commits, make, monkeypatch, code: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store, "db", _Unconfirmed(store.db, code))
        with pytest.raises(StorageError, match=r"would not confirm it \(disk I/O error\).*not stored now") as told:
            await commits.submit(lambda c: c.write([make("a", "x")], ""))
    assert told.value.in_doubt
    assert pickle.loads(pickle.dumps(told.value)).in_doubt
    assert ids(store) == []
    await commits.submit(lambda c: c.write([make("b", "x")], ""))
    assert ids(store) == ["b"]
