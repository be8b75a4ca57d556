"""Graphs that tests serve on Ray Serve; imported by name in its replicas."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from engine.graph import graph
from engine.policy import Policy
from engine.stage import Stage
from engine.stream import Stream

AGAIN = Policy(idempotent=True)
SHARDS = 4
QUORUM = Policy(idempotent=True, coverage=0.5, time=0.5)


class Source:
    """Numbers, and what became of those who asked for them."""

    def __init__(self) -> None:
        self.made = self.running = 0

    async def pid(self, n: int) -> int:
        return os.getpid()

    async def double(self, n: int) -> int:
        return 2 * n

    async def echo(self, text: str) -> str:
        return text

    async def sleep(self, seconds: float) -> float:
        self.running += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
        return seconds

    async def count(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    async def fill(self, kibibytes: int) -> AsyncIterator[str]:
        self.running += 1
        try:
            for _ in range(kibibytes):
                self.made += 1
                yield "w" * 1024
        finally:
            self.running -= 1

    async def tick(self, n: int) -> AsyncIterator[int]:
        self.running += 1
        try:
            yield os.getpid()
            for i in range(n):
                await asyncio.sleep(0.02)
                yield i
        finally:
            self.running -= 1

    async def about(self, n: int) -> list[int]:
        return [self.made, self.running]


class Part:
    """A shard: it answers which one it is, and in which process."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.weight = 10.0

    async def ask(self, seconds: float) -> list[list[int]]:
        await asyncio.sleep(seconds)
        return [[self.shard, os.getpid()]]


def together(answers: list[list[list[int]]]) -> list[list[int]]:
    return [one for answer in answers for one in answer]


source = Stage("source", Source)
twins = Stage("twins", Source, replicas=2)
parts = Stage("parts", Part, shards=SHARDS)
_double, _echo, _sleep = source.step(Source.double), source.step(Source.echo), source.step(Source.sleep)
_count, _fill, _about = source.step(Source.count), source.step(Source.fill), source.step(Source.about)
_tick = source.step(Source.tick, live=True, policy=AGAIN)
_twin = twins.step(Source.pid, policy=AGAIN)
_parts = parts.gather(Part.ask, together, policy=QUORUM)


@graph
def double(n: int) -> int:
    return _double(n)


@graph
def echo(text: str) -> str:
    return _echo(text)


@graph
def sleeping(seconds: float) -> float:
    return _sleep(seconds)


@graph
def counting(n: int) -> Stream[int]:
    return _count(n)


@graph
def filling(kibibytes: int) -> Stream[str]:
    return _fill(kibibytes)


@graph
def ticking(n: int) -> Stream[int]:
    return _tick(n)


@graph
def about(n: int) -> list[int]:
    return _about(n)


@graph
def twin(n: int) -> int:
    return _twin(n)


@graph
def everywhere(seconds: float) -> list[list[int]]:
    return _parts(seconds)


def graphs() -> list[object]:
    return [double, echo, sleeping, counting, filling, ticking, about, twin, everywhere]
