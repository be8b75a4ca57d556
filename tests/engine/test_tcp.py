"""Frames over TCP: what every transport must do, and that nothing is answered without the secret."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from engine.endpoint import Endpoint
from engine.errors import InvalidInput, StageDied
from engine.host import Host
from engine.tcp import MOST_BYTES, SECRET_BYTES, FrameServer, TcpTransport
from tests.parts import Workshop
from tests.transport_suite import TransportSuite


@pytest_asyncio.fixture
async def server():
    endpoint = Endpoint(Host(Workshop()))
    server = await FrameServer.start(endpoint, "127.0.0.1")
    yield server
    await server.aclose()
    await endpoint.host.aclose()


class TestOverTcp(TransportSuite):
    @pytest_asyncio.fixture
    async def transport(self, server):
        transport = TcpTransport("workshop", server.address, server.secret)
        yield transport
        await transport.aclose()

    async def test_a_server_that_goes_fails_its_calls_at_once(self, server, transport):
        hanging = asyncio.create_task(self.call(transport, "hang"))
        await self.call(transport, "add", 1, 2)
        await server.aclose()
        with pytest.raises(StageDied, match="workshop"):
            await hanging
        with pytest.raises(StageDied, match="workshop"):
            await self.call(transport, "add", 1, 2)

    async def test_a_connection_that_ended_is_made_anew(self, transport):
        assert await self.call(transport, "add", 1, 2) == 3
        transport._caller.close()
        await transport._caller.closed()
        assert await self.call(transport, "add", 2, 2) == 4

    async def test_a_frame_that_is_too_long_is_refused_before_it_is_sent(self, transport):
        with pytest.raises(InvalidInput, match="send less at once"):
            await transport.send("call", bytes(MOST_BYTES + 1))


async def test_without_the_secret_nothing_is_answered(server):
    stranger = TcpTransport("workshop", server.address, bytes(SECRET_BYTES).hex())
    with pytest.raises(StageDied):
        await stranger.statistics()
    await stranger.aclose()
