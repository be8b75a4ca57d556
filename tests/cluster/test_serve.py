"""Graphs on Ray Serve: HTTP through the front, replicas that die, streams that nobody reads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import warnings
from pathlib import Path

import httpx
import pytest
import websockets

from benchmarks.serve_stand import Stand
from serve.gateway.config import GatewayConfig
from serve.ray_serve.environment import free_ports
from tests.cluster.served import SHARDS, graphs


@pytest.fixture(scope="module")
def url():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray Serve's own
        from ray import serve

        from serve.ray_serve.application import application

        port = free_ports(1)[0]
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        app = application(graphs, GatewayConfig(stall_seconds=2.0), gateways=2)
        serve.run(app, name="tests", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        serve.shutdown()


@pytest.fixture
async def client(url):
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def asked(client, name, **body):
    answer = await client.post(f"/v1/graphs/{name}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def settled(client):
    """Returns when nothing runs at the source any more."""
    async with asyncio.timeout(10):
        while (await asked(client, "about", n=0))["result"][1]:
            await asyncio.sleep(0.02)


async def events(response):
    """Names and data of server-sent events."""
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")


async def test_a_graph_answers_through_the_front(client):
    assert (await asked(client, "double", n=21))["result"] == 42
    assert len((await client.get("/v1/graphs")).json()["graphs"]) == len(graphs())


async def test_a_stream_comes_as_events(client):
    async with client.stream("POST", "/v1/graphs/counting", json={"n": 1000, "stream": True}) as response:
        found = [data async for name, data in events(response) if name == "item"]
    assert found == [str(i) for i in range(1000)]


async def test_a_wrong_body_is_refused_as_elsewhere(client):
    answer = await client.post("/v1/graphs/double", json={"n": "many"})
    assert answer.status_code in (400, 422)


async def test_a_message_that_is_too_long_for_the_hop_is_refused_and_the_gateway_lives_on(client):
    config_limit = 1 << 20
    answer = await client.post("/v1/graphs/echo", content=b'{"text": "' + b"w" * config_limit + b'"}')
    assert answer.status_code == 413
    assert (await asked(client, "echo", text="w" * 1000))["result"] == "w" * 1000


async def test_a_client_that_leaves_ends_the_work_at_the_last_replica(client):
    call = asyncio.create_task(client.post("/v1/graphs/sleeping", json={"seconds": 30}))
    async with asyncio.timeout(10):
        while (await asked(client, "about", n=0))["result"][1] != 1:
            await asyncio.sleep(0.02)
    call.cancel()
    await settled(client)


async def test_the_deadline_reaches_the_last_replica(client):
    # Not as a header, which Serve reads, too: on a machine short of processor time its own end may come first.
    answer = await client.post("/v1/graphs/sleeping", json={"seconds": 30, "timeout_seconds": 0.3})
    assert answer.status_code == 504
    await settled(client)


async def test_a_reader_that_stops_stops_a_pausable_producer_and_is_given_up(client):
    before = (await asked(client, "about", n=0))["result"][0]
    most = 100_000
    async with client.stream("POST", "/v1/graphs/filling", json={"kibibytes": most, "stream": True}) as response:
        reading = events(response)
        for _ in range(5):
            await anext(reading)
        await asyncio.sleep(1.0)
        made = (await asked(client, "about", n=0))["result"][0] - before
        assert made < most / 3  # credits and what buffers of the kernel and of HAProxy hold
        await settled(client)


async def test_over_a_websocket_an_item_comes_for_each_credit(client, url):
    before = (await asked(client, "about", n=0))["result"][0]
    async with websockets.connect(f"{url.replace('http', 'ws')}/v1/graphs/filling/socket") as socket:
        for message in ({"kibibytes": 10_000}, {"credit": 3}):
            await socket.send(json.dumps(message))
        items = [json.loads(await socket.recv()) for _ in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.recv(), 0.3)
        assert (await asked(client, "about", n=0))["result"][0] - before <= 512  # the engine's window
    assert len(items) == 3
    await settled(client)


async def test_it_says_that_it_is_ready(client):
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "starting": [], "missing": {}})


async def test_with_two_replicas_a_killed_one_is_noticed_by_nobody(client):
    pids = {(await asked(client, "twin", n=i))["result"] for i in range(20)}
    answers: list[httpx.Response] = []

    async def ask_on():
        while len(answers) < 400:
            answers.append(await client.post("/v1/graphs/twin", json={"n": len(answers)}))
            if len(answers) == 100:
                os.kill(pids.pop(), signal.SIGKILL)

    await asyncio.gather(*(ask_on() for _ in range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.json()["partial"] for answer in answers] == [None] * len(answers)


async def test_without_a_second_replica_answers_say_what_is_missing_until_it_is_back(client):
    whole = await asked(client, "everywhere", seconds=0.0)
    assert (whole["partial"], [shard for shard, _ in whole["result"]]) == (None, list(range(SHARDS)))
    os.kill(whole["result"][2][1], signal.SIGKILL)
    back = time.monotonic() + 60
    seen = []
    while time.monotonic() < back:
        answer = await asked(client, "everywhere", seconds=0.0)
        if answer["partial"] is None:
            assert len(answer["result"]) == SHARDS
            if seen:
                break
        else:
            seen.append(answer["partial"])
            assert [shard for shard, _ in answer["result"]] == [0, 1, 3]
        await asyncio.sleep(0.05)
    assert seen
    assert seen[0]["coverage"] == pytest.approx(0.75)
    assert answer["partial"] is None


async def test_a_killed_producer_that_has_spoken_ends_its_stream_with_an_error_and_never_repeats(client):
    async with client.stream("POST", "/v1/graphs/ticking", json={"n": 500, "stream": True}) as response:
        reading = events(response)
        pid = int((await anext(reading))[1])
        found = [await anext(reading) for _ in range(5)]
        os.kill(pid, signal.SIGKILL)
        rest = [event async for event in reading]
    numbers = [int(data) for name, data in [*found, *rest] if name == "item"]
    assert numbers == list(range(len(numbers)))
    assert rest[-1][0] == "error"
    assert "StageDied" in rest[-1][1]
    async with asyncio.timeout(60):  # and a new stream waits for the new producer
        async with client.stream("POST", "/v1/graphs/ticking", json={"n": 3, "stream": True}) as response:
            names = [name async for name, _ in events(response)]
    assert names == ["item"] * 4 + ["done"]


async def test_answers_through_another_gateway_go_on_when_one_dies_and_is_replaced(client, url):
    """For longer than the front, which Serve replaces then, once let what was under way end: 5 s."""

    async def read():
        found = []
        try:
            async with client.stream("POST", "/v1/graphs/ticking", json={"n": 500, "stream": True}) as response:
                async for event in events(response):
                    found.append(event)
        except httpx.HTTPError:
            found.append(("cut off", ""))
        return found

    reading = [asyncio.create_task(read()) for _ in range(4)]
    await asyncio.sleep(1)
    folder = Path(os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent
    one, _ = Stand(url, str(folder), []).replicas("gateway")
    os.kill(one, signal.SIGKILL)
    streams = await asyncio.gather(*reading)
    ends = {stream[-1][0] for stream in streams}
    assert "done" in ends, ends  # the front gave each gateway some
    for stream in streams:
        numbers = [int(data) for name, data in stream[1:] if name == "item"]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) == 500 or stream[-1][0] == "cut off"
