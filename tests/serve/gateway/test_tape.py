"""Tapes: what is recorded is read once and in order, from any kept place, and never far ahead of the reader."""

from __future__ import annotations

import asyncio

import pytest

from engine.clock import settle
from serve.gateway.problems import Refused
from serve.gateway.tape import Tape


async def all_after(tape, number):
    return [frames async for frames in tape.after(number, idle_s=10) if frames]


async def recorded(tape, count):
    for n in range(1, count + 1):
        await tape.record(b"%d " % n)
    tape.end()


async def test_frames_come_in_order_joined_as_far_as_they_are_there():
    tape = Tape(ahead=10, kept=10)
    await recorded(tape, 5)
    assert await all_after(tape, 0) == [b"1 2 3 4 5 "]
    assert await all_after(tape, 3) == [b"4 5 "]
    assert await all_after(tape, 5) == []


async def test_recording_waits_for_the_reader():
    tape = Tape(ahead=3, kept=10)
    recording = asyncio.create_task(recorded(tape, 100))
    await settle()
    assert tape.recorded == 3
    reader = tape.after(0, idle_s=10)
    assert await anext(reader) == b"1 2 3 "
    await settle()
    assert tape.recorded == 6
    rest = [frames async for frames in reader]
    await recording
    assert b"".join(rest).split() == [b"%d" % n for n in range(4, 101)]


async def test_what_is_not_kept_or_was_never_recorded_cannot_be_read_after():
    tape = Tape(ahead=10, kept=10)
    recording = asyncio.create_task(recorded(tape, 25))
    assert len(b"".join(await all_after(tape, 0)).split()) == 25
    await recording
    assert await all_after(tape, 15) == [b"16 17 18 19 20 21 22 23 24 25 "]
    for number in (14, 26, -1):
        with pytest.raises(Refused, match="ask again"):
            await anext(tape.after(number, idle_s=10))


async def test_nothing_comes_now_and_then_when_nothing_is_recorded():
    tape = Tape(ahead=3, kept=3)
    reader = tape.after(0, idle_s=0.001)
    assert [await anext(reader), await anext(reader)] == [b"", b""]
    await reader.aclose()
