import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from operators.corpus.shared_lock import SharedLock


class Visit:
    """A thread that takes a lock, tells the log, and holds the lock until it is told to leave."""

    def __init__(self, pool: ThreadPoolExecutor, take: Callable[[], AbstractContextManager], log: list, name: str):
        self.inside, self._leave = threading.Event(), threading.Event()
        self._log, self._name = log, name
        self._visit: Future = pool.submit(self._run, take)

    def _run(self, take):
        with take():
            self._log.append(self._name)
            self.inside.set()
            assert self._leave.wait(10)

    def leave(self):
        self._leave.set()
        self._visit.result(10)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def waiting(lock: SharedLock, *, to_share: int = 0, alone: int = 0) -> None:
    """Returns when so many wait."""
    while (lock._waiting_to_share, lock._asked_alone - lock._turns) != (to_share, alone):
        threading.Event().wait(0.001)


def test_many_share_and_one_alone_waits_for_all_of_them(pool):
    lock, log = SharedLock(), []
    first, second = Visit(pool, lock.shared, log, "first"), Visit(pool, lock.shared, log, "second")
    assert first.inside.wait(10)
    assert second.inside.wait(10)
    alone = Visit(pool, lock.alone, log, "alone")
    waiting(lock, alone=1)
    first.leave()
    assert not alone.inside.is_set()
    second.leave()
    assert alone.inside.wait(10)
    alone.leave()


def test_neither_side_keeps_the_other_waiting_for_more_than_a_turn(pool):
    lock, log = SharedLock(), []
    early = Visit(pool, lock.shared, log, "early")
    assert early.inside.wait(10)
    alone = Visit(pool, lock.alone, log, "alone")
    waiting(lock, alone=1)
    late = Visit(pool, lock.shared, log, "late")
    waiting(lock, to_share=1, alone=1)  # for one that wants it alone, though someone shares it now
    again = Visit(pool, lock.alone, log, "again")
    waiting(lock, to_share=1, alone=2)
    for visit in (early, alone, late, again):
        assert visit.inside.wait(10)
        visit.leave()
    assert log == ["early", "alone", "late", "again"]


def test_what_fails_inside_leaves_the_lock_free():
    lock = SharedLock()
    for take in (lock.shared, lock.alone):
        with pytest.raises(ValueError, match="inside"), take():
            raise ValueError("inside")
    with lock.alone():
        pass


def test_under_load_nobody_is_in_with_one_who_is_alone(pool):
    lock, inside, most = SharedLock(), {"shared": 0, "alone": 0}, []
    count = threading.Lock()

    def visit(name: str, take) -> None:
        for _ in range(300):
            with take():
                with count:
                    inside[name] += 1
                    most.append(dict(inside))
                with count:
                    inside[name] -= 1

    visits = [pool.submit(visit, "shared", lock.shared) for _ in range(4)]
    visits += [pool.submit(visit, "alone", lock.alone) for _ in range(2)]
    for each in visits:
        each.result(60)
    assert len(most) == 6 * 300
    assert all(state["alone"] <= 1 and not (state["alone"] and state["shared"]) for state in most)
