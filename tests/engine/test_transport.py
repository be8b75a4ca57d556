from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from engine.errors import InvalidInput, StageDied, StepFailed
from engine.host import Host
from engine.method import method_of
from engine.process import ProcessTransport
from engine.scope import Scope
from engine.transport import LocalTransport
from tests.parts import Refuses, RefusesAtLength, Workshop
from tests.transport_suite import TransportSuite


class TestInProcess(TransportSuite):
    @pytest_asyncio.fixture
    async def transport(self):
        transport = LocalTransport(Host(Workshop()))
        yield transport
        await transport.aclose()


class TestChildProcess(TransportSuite):
    @pytest_asyncio.fixture
    async def transport(self):
        transport = await ProcessTransport.start("workshop", Workshop, {})
        yield transport
        await transport.aclose()

    async def test_a_child_that_dies_fails_its_calls_at_once(self, transport):
        hanging = asyncio.create_task(self.call(transport, "hang"))
        with pytest.raises(StageDied, match="workshop"):
            await self.call(transport, "die")
        with pytest.raises(StageDied):
            await hanging
        with pytest.raises(StageDied):
            await self.call(transport, "add", 1, 2)

    async def test_the_child_ends_when_the_transport_closes(self, transport):
        process = transport._process
        await transport.aclose()
        assert process.returncode == 0


async def test_a_state_that_cannot_be_made_tells_why():
    with pytest.raises(StepFailed, match="no weights at /nowhere"):
        await ProcessTransport.start("weights", Refuses, {})


async def test_a_state_that_cannot_be_made_tells_why_at_any_length():
    with pytest.raises(StepFailed) as told:
        await ProcessTransport.start("weights", RefusesAtLength, {})
    assert told.value.message.endswith("no weights")


async def test_an_opener_that_cannot_be_pickled_is_refused_with_advice():
    with pytest.raises(InvalidInput, match="top level of a module"):
        await ProcessTransport.start("lambda", lambda: Workshop(), {})


async def test_a_call_cancelled_before_it_arrives_is_not_run():
    host = Host(Workshop())
    await host.close("call-1", "gone")
    with pytest.raises(Exception, match="before it arrived"):
        await host.call("add", (1, 2), Scope(), id="call-1")
    await host.aclose()


def test_a_method_that_is_not_async_is_refused():
    with pytest.raises(InvalidInput, match="no async method '__init__'"):
        method_of(Workshop, "__init__")
