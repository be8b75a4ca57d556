"""The child process of a ProcessTransport: `python -m engine.child FD`."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
from typing import Any

import msgspec

from engine.endpoint import Endpoint
from engine.host import Host
from engine.process import HEADER, Frame
from engine.supervise import as_step_failure
from engine.wire import encode_error


async def main(fd: int) -> None:
    """Answer frames until the parent closes the socket, then end the host."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock)
    endpoint: Endpoint | None = None
    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            number, frame = await _next(reader)
            if frame.verb == "start":
                endpoint, failure = await _start(frame.body)
                _answer(writer, number, failure)
            elif endpoint is not None:
                task = asyncio.create_task(_serve(endpoint, writer, number, frame))
                running.add(task)
                task.add_done_callback(running.discard)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the parent is done with us, or gone
    for task in running:
        task.cancel()
    if endpoint is not None:
        await endpoint.host.aclose()


async def _next(reader: asyncio.StreamReader) -> tuple[int, Frame]:
    size, number = HEADER.unpack(await reader.readexactly(HEADER.size))
    return number, msgspec.msgpack.decode(await reader.readexactly(size), type=Frame)


async def _start(opener: bytes) -> tuple[Endpoint | None, bytes]:
    """The endpoint of the state that `opener` makes, or the error it raised, packed."""
    try:
        make, methods = pickle.loads(opener)
        state: Any = await asyncio.to_thread(make)
    except Exception as error:  # noqa: BLE001 - the supervisor boundary: raised again in the parent
        return None, encode_error(as_step_failure(error, "start", None))
    return Endpoint(Host(state), methods), b""


async def _serve(endpoint: Endpoint, writer: asyncio.StreamWriter, number: int, frame: Frame) -> None:
    _answer(writer, number, await endpoint.handle(frame.verb, frame.body))
    await writer.drain()


def _answer(writer: asyncio.StreamWriter, number: int, body: bytes) -> None:
    writer.write(HEADER.pack(len(body), number) + body)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
    sys.stdout.flush()
    os._exit(0)  # a JVM in this process would otherwise hold it up; the state has been closed above
