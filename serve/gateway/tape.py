"""The events of one stream, recorded while they are sent, so that a client who was cut off can have them again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from serve.gateway.problems import Refused


class Tape:
    """Frames in order, numbered from 1; the last ones are kept.

    One task records, and waits while it is too far ahead of who reads. One reader at a time counts.

    Args:
        ahead: Frames that may be recorded and not read yet.
        kept: Frames that are kept, read or not; at least `ahead`.
    """

    def __init__(self, *, ahead: int, kept: int) -> None:
        self._ahead = ahead
        self._frames: deque[bytes] = deque(maxlen=kept)
        self._read = 0
        self.recorded = 0  # number of the last frame
        self.ended = False
        self._changed = asyncio.Event()

    async def record(self, frame: bytes) -> None:
        """Adds a frame, once there is room."""
        while self.recorded - self._read >= self._ahead:
            await self._changed.wait()
        self._frames.append(frame)
        self.recorded += 1
        self._tell()

    def end(self) -> None:
        """Nothing more will be recorded."""
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def refuse_unless_kept(self, number: int) -> None:
        """Refuses to go on after a frame whose successor is gone.

        Raises:
            Refused: The frame after that number is not kept any more, or no such number was given out.
        """
        if not self.recorded - len(self._frames) <= number <= self.recorded:
            raise Refused(
                410,
                f"event {number} cannot be resumed from: of {self.recorded} events the last {len(self._frames)} are "
                "kept; ask again",
            )

    async def after(self, number: int, *, idle_s: float) -> AsyncGenerator[bytes, None]:
        """The frames behind that number: all that are there at once, joined; nothing (b"") after `idle_s` without one.

        Raises:
            Refused: As `refuse_unless_kept`.
        """
        self.refuse_unless_kept(number)
        self._read = number
        while True:
            if self._read < self.recorded:
                first = self._read - (self.recorded - len(self._frames))
                frames = [self._frames[i] for i in range(first, len(self._frames))]
                self._read = self.recorded
                self._tell()
                yield b"".join(frames)
            elif self.ended:
                return
            else:
                try:
                    async with asyncio.timeout(idle_s):
                        await self._changed.wait()
                except TimeoutError:
                    yield b""
