"""Frames over a byte stream: both ends of a connection that carries many calls at once.

::

    caller -> endpoint   header (bytes that follow, number), then verb and body as msgpack
    endpoint -> caller   header (bytes that follow, the same number), then the bare answer

Answers come in the order in which they are ready.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable

import msgspec

from engine.tasks import keep

HEADER = struct.Struct("<IQ")  # bytes that follow, number of the frame

Handle = Callable[[str, bytes], Awaitable[bytes]]


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """What follows a header, caller to endpoint."""

    verb: str
    body: bytes


class Caller:
    """The caller's end of a connection.

    Args:
        reader: Where answers come from.
        writer: Where frames go.
        died: Makes the error for calls that get no answer any more.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, died: Callable[[], Exception]
    ) -> None:
        self._writer = writer
        self._died = died
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._reading = asyncio.create_task(self._read(reader))

    @property
    def lives(self) -> bool:
        """Whether the other end has not closed the connection."""
        return not self._reading.done()

    async def send(self, verb: str, body: bytes) -> bytes:
        """The answer to one frame.

        Raises:
            Exception: What `died` makes, when the connection ends before the answer.
        """
        if not self.lives:
            raise self._died()
        number = next(self._numbers)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            frame = msgspec.msgpack.encode(Frame(verb, body))
            self._writer.write(HEADER.pack(len(frame), number) + frame)
            return await future
        finally:
            self._waiting.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand each answer to who waits for it, until the other end closes the connection."""
        try:
            while True:
                size, number = HEADER.unpack(await reader.readexactly(HEADER.size))
                body = await reader.readexactly(size)
                future = self._waiting.get(number)
                if future is not None and not future.done():
                    future.set_result(body)
        except (asyncio.IncompleteReadError, OSError):
            pass
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._died())

    def close(self) -> None:
        """Close the connection; calls that wait fail."""
        self._writer.close()

    async def closed(self) -> None:
        """Returns when nothing is read any more."""
        await asyncio.wait([self._reading])


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, Frame]:
    """The number of the next frame, and the frame.

    Raises:
        asyncio.IncompleteReadError, OSError: The connection ended.
    """
    size, number = HEADER.unpack(await reader.readexactly(HEADER.size))
    return number, msgspec.msgpack.decode(await reader.readexactly(size), type=Frame)


def write_answer(writer: asyncio.StreamWriter, number: int, body: bytes) -> None:
    """Answer the frame of that number."""
    writer.write(HEADER.pack(len(body), number) + body)


async def answer_frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handle) -> None:
    """The endpoint's end: answer frames, many at once, until the caller closes the connection; then cancel the rest."""
    running: set[asyncio.Task[None]] = set()

    async def answer(number: int, frame: Frame) -> None:
        write_answer(writer, number, await handle(frame.verb, frame.body))
        await writer.drain()

    try:
        while True:
            keep(running, answer(*await read_frame(reader)))
    except (asyncio.IncompleteReadError, OSError):
        pass  # the caller is done with us, or gone
    finally:
        for task in running:
            task.cancel()
