from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from engine.errors import InvalidInput, StageDied
from engine.graph import Graph, graph
from engine.stage import Stage
from engine.step import step
from engine.stream import Stream
from serve.gateway.app import Gateway
from serve.gateway.config import GatewayConfig
from serve.gateway.server import listen


class Source:
    """Items of every kind, and what became of those who made them."""

    def __init__(self) -> None:
        self.made = 0
        self.stopped = asyncio.Event()

    async def count(self, n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                self.made += 1
                yield i
                await asyncio.sleep(0)
        finally:
            self.stopped.set()

    async def forever(self, start: int) -> AsyncIterator[str]:
        try:
            yield f"begun at {start}"
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    async def breaks(self, after: int) -> AsyncIterator[int]:
        for i in range(after):
            yield i
        raise StageDied("the model is gone")

    async def fill(self, kibibytes: int) -> AsyncIterator[str]:
        try:
            for _ in range(kibibytes):
                self.made += 1
                yield "w" * 1024
        finally:
            self.stopped.set()

    async def sleep(self, n: int) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        return n


@step
def double(n: int) -> int:
    """Twice n, up to 100."""
    if n > 100:
        raise InvalidInput(f"n is {n}; expected at most 100")
    return 2 * n


@step
def fails(n: int) -> int:
    raise ZeroDivisionError(n)


@step
async def spoken(words: list[str]) -> AsyncIterator[str]:
    for word in words:
        yield word


source = Stage("source", Source)
_count, _forever, _fill = source.step(Source.count), source.step(Source.forever), source.step(Source.fill)
_breaks, _sleep = source.step(Source.breaks), source.step(Source.sleep)


@graph
def twice(n: int) -> int:
    """Doubles a number."""
    return double(n)


@graph
def broken(n: int) -> int:
    return fails(n)


@graph
def counting(n: int) -> Stream[int]:
    return _count(double(n))


@graph
def endless(n: int) -> Stream[str]:
    return _forever(n)


@graph
def filling(kibibytes: int) -> Stream[str]:
    return _fill(kibibytes)


@graph
def breaking(n: int) -> Stream[int]:
    return _breaks(n)


@graph
def sleeping(n: int) -> int:
    return _sleep(n)


@graph
def speaking(words: list[str]) -> Stream[str]:
    return spoken(words)


GRAPHS = (twice, broken, counting, endless, filling, breaking, sleeping, speaking)


class Served:
    """A gateway on a port of its own, a client, and the state behind its stage."""

    def __init__(self, gateway: Gateway, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.client = client

    @property
    def source(self) -> Source:
        (pool,) = self.gateway._session.pools
        return pool.shards[0].transports[0].host.state

    @property
    def outstanding(self) -> int:
        return sum(pool.outstanding for pool in self.gateway._session.pools) + self.gateway._admission.active

    async def settled(self) -> None:
        """Returns when nothing runs any more."""
        async with asyncio.timeout(5):
            while self.outstanding:
                await asyncio.sleep(0.005)

    async def post(self, name: str, body: object, **headers: str) -> httpx.Response:
        return await self.client.post(f"/v1/graphs/{name}", json=body, headers=headers)


@pytest.fixture
def config() -> GatewayConfig:
    return GatewayConfig(ahead=8, kept=1000)


@pytest.fixture
async def served(config: GatewayConfig) -> AsyncIterator[Served]:
    async with serving(GRAPHS, config) as running:
        yield running


@asynccontextmanager
async def serving(graphs: Sequence[Graph[..., Any]], config: GatewayConfig) -> AsyncIterator[Served]:
    """Some graphs behind a gateway that listens."""
    gateway = Gateway(graphs, config)
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(gateway.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server._serve(sockets=[listening]))
    await gateway.start()
    port = listening.getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        yield Served(gateway, client)
    server.should_exit = True
    await serving
    await gateway.aclose()
    listening.close()
