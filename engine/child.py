"""The child process of a ProcessTransport: `python -m engine.child FD`."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
from typing import Any

from engine.endpoint import Endpoint
from engine.frames import answer_frames, read_frame, write_answer
from engine.host import Host
from engine.supervise import as_step_failure
from engine.wire import encode_error


async def main(fd: int) -> None:
    """Make the state that the first frame opens, answer the others until the parent closes the socket, end the host."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        number, frame = await read_frame(reader)
    except (asyncio.IncompleteReadError, OSError):
        return  # the parent has changed its mind
    endpoint, failure = await _start(frame.body)
    write_answer(writer, number, failure)
    if endpoint is None:
        await reader.read()  # until the parent, having read why, closes the socket: this process ends at once then
        return
    await answer_frames(reader, writer, endpoint.handle)
    await endpoint.host.aclose()


async def _start(opener: bytes) -> tuple[Endpoint | None, bytes]:
    """The endpoint of the state that `opener` makes, or the error it raised, packed."""
    try:
        make, methods = pickle.loads(opener)
        state: Any = await asyncio.to_thread(make)
    except Exception as error:  # noqa: BLE001 - the supervisor boundary: raised again in the parent
        return None, encode_error(as_step_failure(error, "start", None))
    return Endpoint(Host(state), methods), b""


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
    sys.stdout.flush()
    os._exit(0)  # a JVM in this process would otherwise hold it up; the state has been closed above
