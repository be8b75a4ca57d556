"""Processes that are made to be killed: forked, with a running Java machine, told what to do over a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from operators.corpus import jvm

_FORK = multiprocessing.get_context("fork")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)

Work = Callable[[Connection, Any], Awaitable[None]]


class Child:
    """A process that waits, warm, for its task; a spare one costs its second while others work.

    Forked, so whoever makes one has imported everything and runs no thread. It dies with its parent.

    Args:
        work: What to do with this end of the line and the task; what it raises is told back.
    """

    def __init__(self, work: Work) -> None:
        self._line, end = _FORK.Pipe()
        self._process = _FORK.Process(target=_serve, args=(work, end, self._line), daemon=True)
        self._process.start()
        end.close()
        self._warm = False

    def tell(self, *task: Any) -> None:
        """Sends it a task, as soon as it is warm."""
        if not self._warm:
            assert self.hear() == "warm"
            self._warm = True
        self._line.send(task)

    def hear(self) -> Any:
        """Waits for what it says next.

        Raises:
            AssertionError: It found something wrong.
        """
        said = self._line.recv()
        if isinstance(said, AssertionError):
            raise said
        return said

    def hears_within(self, seconds: float) -> bool:
        """Whether it says something in that time."""
        return self._line.poll(seconds)

    def kill(self) -> list[Any]:
        """Kills it with SIGKILL; returns what it still said."""
        self._process.kill()
        return self.last_words()

    def last_words(self) -> list[Any]:
        """What it says until it ends."""
        said = []
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                said.append(self.hear())
        self._process.join()
        self._line.close()
        return said


def _serve(work: Work, line: Connection, other_end: Connection) -> None:
    other_end.close()
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    jvm.start()
    line.send("warm")
    try:
        asyncio.run(_work(work, line))
    except Exception as error:  # told to the parent, which raises it
        told = str(error) if isinstance(error, AssertionError) else "".join(traceback.format_exception(error))
        line.send(AssertionError(told))
    line.close()
    os._exit(0)  # what ends a Java machine in order is of no interest


async def _work(work: Work, line: Connection) -> None:
    with contextlib.suppress(EOFError):  # the parent wanted nothing more
        await work(line, line.recv())
