"""A lock that many may share or one may have alone (a readers-writer lock)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """Those who want it alone get it in their order; who waits to share it comes after one of them, before the next.

    Not to be asked for again by a thread that has it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._asked_alone = 0
        self._turns = 0  # of those who had it alone: as many as asked, unless one has it or waits
        self._waiting_to_share = 0
        self._owed = 0  # those who waited to share it during the last turn, and come before the next

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Holds the lock together with others."""
        with self._changed:
            turn = self._turns
            if self._asked_alone > turn:
                self._waiting_to_share += 1
                self._changed.wait_for(lambda: self._turns > turn)
                self._owed -= 1
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the lock alone."""
        with self._changed:
            turn = self._asked_alone
            self._asked_alone += 1
            self._changed.wait_for(lambda: self._turns == turn and not (self._sharing or self._owed))
        try:
            yield
        finally:
            with self._changed:
                self._turns += 1
                self._owed, self._waiting_to_share = self._waiting_to_share, 0
                self._changed.notify_all()
