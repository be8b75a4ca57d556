"""A stage's state in a child process, spoken to over a socket pair."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import HeadraceError, InvalidInput, StageDied
from engine.frames import Caller
from engine.method import Method
from engine.transport import RemoteTransport
from engine.wire import decode_error

# One thread a pool and process: the pools of BLAS, OpenMP and tokenizers multiply by processes otherwise.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class ProcessTransport(RemoteTransport):
    """The caller's side; made by `ProcessTransport.start`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        super().__init__()
        self._name = name
        self._process = process
        self._sock = sock
        self._caller: Caller | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        open: Callable[[], Any],
        environment: Mapping[str, str],
        methods: Mapping[str, Method] | None = None,
    ) -> ProcessTransport:
        """Start a child, have it make the state, and return when it is ready.

        Raises:
            InvalidInput: `open` cannot be pickled.
            HeadraceError: Whatever `open` raised in the child.
        """
        try:
            opener = pickle.dumps((open, dict(methods or {})))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidInput(
                f"stage {name!r} cannot move to another process: {error}; "
                "define what it opens at the top level of a module"
            ) from error
        ours, theirs = socket.socketpair()
        process = await asyncio.to_thread(_spawn, theirs, environment)
        theirs.close()
        ours.setblocking(False)
        transport = cls(name, process, ours)
        transport._caller = Caller(*await asyncio.open_connection(sock=ours), transport._died)
        try:
            failure = await transport.send("start", opener)
            if failure:
                raise decode_error(failure)
        except BaseException:
            await transport.end()
            raise
        return transport

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    async def send(self, verb: str, frame: bytes) -> bytes:
        """See RemoteTransport."""
        if self._caller is None:
            raise self._died()
        return await self._caller.send(verb, frame)

    def _died(self) -> HeadraceError:
        code = self._process.poll()
        how = "" if code is None else f" (exit code {code})"
        return StageDied(f"the process of stage {self._name!r} is gone{how}; start the graph again", step=self._name)

    async def end(self) -> None:
        """Close the socket, which ends the child; kill it when it lingers."""
        if self._caller is not None:
            self._caller.close()
        try:
            await asyncio.to_thread(self._process.wait, 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if self._caller is not None:
            await self._caller.closed()


def _spawn(theirs: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The child, in a session of its own so that Ctrl-C in the terminal reaches us alone."""
    return subprocess.Popen(
        [sys.executable, "-m", "engine.child", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment},
        start_new_session=True,
    )
