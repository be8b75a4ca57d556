"""Graphs over WebSockets: as many items as there are credits, and everything ends when the client goes."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
import websockets

from engine.scope import Scope
from serve.gateway.sockets import Conversation


@pytest.fixture
async def connect(served):
    sockets = []

    async def connected(name: str, *messages: object):
        url = f"ws://127.0.0.1:{served.client.base_url.port}/v1/graphs/{name}/socket"
        socket = await websockets.connect(url)
        sockets.append(socket)
        for message in messages:
            await socket.send(message if isinstance(message, str) else json.dumps(message))
        return socket

    yield connected
    for socket in sockets:
        await socket.close()
    await served.settled()


async def rest(socket) -> list[dict]:
    messages = []
    with suppress(websockets.ConnectionClosedError):  # the code after an error is not that of a good end
        async for message in socket:
            messages.append(json.loads(message))
    return messages


async def test_items_come_one_for_each_credit_and_no_more_are_pulled(connect, served):
    socket = await connect("speaking", {"words": [f"w{n}" for n in range(10)]}, {"credit": 3})
    assert [json.loads(await socket.recv())["data"] for _ in range(3)] == ["w0", "w1", "w2"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(socket.recv(), 0.1)
    await socket.send('{"credit": 100}')
    found = await rest(socket)
    assert [m["data"] for m in found[:-1]] == [f"w{n}" for n in range(3, 10)]
    assert [m["seq"] for m in found] == list(range(4, 12))
    assert (found[-1]["event"], found[-1]["data"]["events"]) == ("done", 10)


async def test_the_producer_behind_a_hop_stops_within_its_credits(connect, served):
    socket = await connect("filling", {"kibibytes": 10_000}, {"credit": 2})
    await socket.recv()
    await socket.recv()
    await asyncio.sleep(0.1)
    assert served.source.made <= 512 + 2  # the engine's own window, and nothing of the kernel's megabytes
    await socket.send('{"cancel": true}')
    (last,) = await rest(socket)
    assert (last["event"], last["data"]["error_type"]) == ("error", "Cancelled")
    assert served.source.stopped.is_set()


async def test_a_value_needs_no_credit(connect):
    found = await rest(await connect("twice", {"n": 4}))
    assert [(m["event"], m["seq"]) for m in found] == [("item", 1), ("done", 2)]
    assert found[0]["data"] == 8


async def test_closing_the_socket_stops_the_producer(connect, served):
    socket = await connect("endless", {"n": 1}, {"credit": 5})
    await socket.recv()
    await socket.close()
    await asyncio.wait_for(served.source.stopped.wait(), 2)
    await served.settled()


@pytest.mark.parametrize(
    ("name", "messages", "said"),
    [
        ("thrice", [{"n": 1}], "there is no graph 'thrice'"),
        ("twice", ["{"], "cannot be read"),
        ("twice", [{"n": 1000}], "at most 100"),
        ("endless", [{"n": 1}, {"credit": 0}], "credit is 0"),
        ("endless", [{"n": 1}, {"credit": 10**9}], "credit is 1000000000"),
        ("endless", [{"n": 1}, {"debit": 1}], "cannot be read"),
        ("endless", [{"n": 1}, "nonsense"], "cannot be read"),
        ("endless", [{"n": 1, "timeout_seconds": 0.1}], "waiting for credits"),
        ("breaking", [{"n": 1}, {"credit": 5}], "the model is gone"),
    ],
)
async def test_what_is_wrong_is_the_last_message(connect, name, messages, said):
    *_, last = await rest(await connect(name, *messages))
    assert last["event"] == "error"
    assert said in last["data"]["message"]


async def test_a_conversation_that_is_cancelled_leaves_nobody_sending(served):
    """As Ray Serve does it: the task that holds the conversation is cancelled when the client goes."""

    class Silent:
        async def receive_text(self) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    scope = Scope()
    running = served.gateway._running["endless"]
    conversation = Conversation(Silent(), scope, lambda sent: {"events": sent})
    holding = asyncio.create_task(conversation.hold(running.within(scope)(1)))
    await asyncio.sleep(0.05)
    holding.cancel()
    await asyncio.wait([holding])
    await served.settled()
    assert scope.cancelled
