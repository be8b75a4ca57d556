"""The gateway over a real socket: answers, events, deadlines, refusals, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import httpx
import pytest

from engine.scope import Loss, Scope
from engine.trace import Trace
from serve.gateway.config import GatewayConfig


def events(text: str) -> list[tuple[str, str, object]]:
    """Id, name and data of each event, read as the standard says."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


async def test_a_graph_answers_in_json(served):
    answer = await served.post("twice", {"n": 21})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["result"] == 42
    assert (body["graph"], body["partial"], body["id"]) == ("twice", None, answer.headers["x-request-id"])


async def test_a_stream_is_json_unless_events_are_asked_for(served):
    assert (await served.post("counting", {"n": 2})).json()["result"] == 3
    assert (await served.post("counting", {"n": 2, "stream": False}, accept="text/event-stream")).json()["result"] == 3


@pytest.mark.parametrize(("body", "accept"), [({"stream": True}, "*/*"), ({}, "text/event-stream")])
async def test_events_carry_every_item_with_an_id_and_end_with_done(served, body, accept):
    answer = await served.post("counting", {"n": 2, **body}, accept=accept)
    assert answer.headers["content-type"].startswith("text/event-stream")
    id_ = answer.headers["x-request-id"]
    *items, done = events(answer.text)
    assert items == [(f"{id_}:{i + 1}", "item", i) for i in range(4)]
    assert done[:2] == (f"{id_}:5", "done")
    assert done[2]["events"] == 4
    await served.settled()


async def test_text_of_any_script_arrives_whole_and_no_line_end_breaks_a_frame(served):
    words = ["水库", "naïve\n\ndata: x", "a\u2028b\u2029c\x85d", "🌊", "id: 7\r\nevent: done"]
    answer = await served.post("speaking", {"words": words, "stream": True})
    assert [data for _, event, data in events(answer.text) if event == "item"] == words
    assert not {"\u2028", "\u2029", "\x85", "\r"} & set(answer.text)


async def test_an_interrupted_stream_is_resumed_where_it_broke(served):
    body = {"n": 20, "stream": True, "resume_seconds": 5}
    async with served.client.stream("POST", "/v1/graphs/counting", json=body) as answer:
        id_ = answer.headers["x-request-id"]
        async for line in answer.aiter_lines():
            if line == f"id: {id_}:3":
                break
    rest = await served.client.get("/v1/streams", headers={"last-event-id": f"{id_}:3"})
    found = events(rest.text)
    assert [data for _, event, data in found if event == "item"] == list(range(3, 40))
    assert found[-1][1] == "done"
    again = await served.client.post("/v1/graphs/counting", headers={"last-event-id": f"{id_}:39"})
    assert [event for _, event, _ in events(again.text)] == ["item", "done"]
    await served.settled()


@pytest.mark.parametrize("last", ["nothing:1", "no-number", "x:-1", "x:٣"])
async def test_what_cannot_be_resumed_is_gone(served, last):
    answer = await served.client.get("/v1/streams", headers={"last-event-id": last.encode()})
    assert answer.status_code == 410
    assert "ask again" in answer.json()["message"]


async def test_events_that_are_not_kept_cannot_be_resumed(served):
    answer = await served.post("counting", {"n": 50, "stream": True}, **{"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    gone = await served.client.get("/v1/streams", headers={"last-event-id": "mine:102"})
    assert gone.status_code == 410


async def test_a_failure_in_the_midst_of_a_stream_is_an_event_with_its_place(served):
    answer = await served.post("breaking", {"n": 2, "stream": True})
    *items, last = events(answer.text)
    assert [data for _, _, data in items] == [0, 1]
    assert last[1] == "error"
    assert (last[2]["error_type"], last[2]["seq"]) == ("StageDied", 2)
    await served.settled()


async def test_a_failure_before_a_stream_begins_has_a_status(served):
    answer = await served.post("counting", {"n": 1000, "stream": True})
    assert answer.status_code == 400
    assert answer.json()["message"] == "n is 1000; expected at most 100"
    await served.settled()


async def test_closing_the_connection_stops_the_producer(served):
    async with served.client.stream("POST", "/v1/graphs/endless", json={"n": 1, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data"):
                break
    await asyncio.wait_for(served.source.stopped.wait(), 2)
    await served.settled()


async def test_closing_the_connection_stops_a_call_without_a_stream(served):
    with pytest.raises(httpx.ReadTimeout):
        await served.client.post("/v1/graphs/sleeping", json={"n": 1}, timeout=0.2)
    await asyncio.wait_for(served.source.stopped.wait(), 2)
    await served.settled()


@pytest.mark.parametrize(
    ("headers", "body"),
    [({"x-request-timeout-seconds": "0.1"}, {}), ({}, {"timeout_seconds": 0.1}),
     ({"x-request-timeout-seconds": "0.1"}, {"timeout_seconds": 50})],
)  # fmt: skip
async def test_the_deadline_comes_with_the_request_and_ends_the_work(served, headers, body):
    answer = await served.post("sleeping", {"n": 1, **body}, **headers)
    assert answer.status_code == 504
    assert answer.json()["error_type"] == "DeadlineExceeded"
    assert served.source.stopped.is_set()
    await served.settled()


async def test_a_stream_is_ended_by_its_deadline_with_an_event(served):
    answer = await served.post("endless", {"n": 1, "stream": True, "timeout_seconds": 0.2})
    assert [event for _, event, _ in events(answer.text)] == ["item", "error"]
    assert events(answer.text)[-1][2]["error_type"] == "DeadlineExceeded"
    await served.settled()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"[1]", "Expected `object`"),
        (b'{"n": "x"}', r"Expected `int`"),
        (b'{"n": 1, "strean": true}', "unknown field `strean`"),
        (b'{"n": 1, "priority": "high"}', "Invalid enum value 'high'"),
        (b'{"n": 1, "timeout_seconds": 0}', "timeout_seconds is 0"),
        (b'{"n": 1, "timeout_seconds": -1e400}', "cannot be read|timeout_seconds"),
        (b'{"n": 1, "resume_seconds": -1}', "resume_seconds is -1"),
        (b'{"n": 1, "stream": true}', "no stream"),
        (b'{"n": 1}\xff', "cannot be read"),
        (b'{"n": "\\u0000"}', "NUL"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"n": 1000}', "at most 100"),
    ],
)
async def test_bad_input_is_told_as_such(served, content, said):
    answer = await served.client.post("/v1/graphs/twice", content=content)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert re.search(said, body["message"])
    assert body["detail"]["message"] == body["message"]


async def test_a_body_that_is_too_long_is_refused(served):
    answer = await served.client.post("/v1/graphs/twice", content=b" " * (served.gateway.config.body_bytes + 1))
    assert answer.status_code == 413


@pytest.mark.parametrize("timeout", ["", "soon", "-1", "nan", "inf"])
async def test_a_deadline_that_is_none_is_refused(served, timeout):
    answer = await served.post("twice", {"n": 1}, **{"x-request-timeout-seconds": timeout})
    assert answer.status_code == 400
    assert "expected seconds above 0" in answer.json()["message"]


async def test_unknown_graphs_paths_and_methods_are_told_what_there_is(served):
    unknown = await served.post("thrice", {"n": 1})
    assert unknown.status_code == 404
    assert "there are twice, broken" in unknown.json()["message"]
    assert (await served.client.get("/nowhere")).status_code == 404
    refused = await served.client.delete("/v1/graphs/twice")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert "openapi.json" in refused.json()["message"]


async def test_a_failing_step_is_a_500_with_the_requests_id(served):
    answer = await served.post("broken", {"n": 1})
    assert answer.status_code == 500
    body = answer.json()
    assert (body["error_type"], body["step"], body["request_id"]) == (
        "StepFailed",
        "fails",
        answer.headers["x-request-id"],
    )
    assert (await served.post("twice", {"n": 1})).status_code == 200


async def test_graphs_are_shown_in_json_mermaid_svg_and_words(served):
    listed = (await served.client.get("/v1/graphs")).json()["graphs"]
    assert [g["name"] for g in listed][:3] == ["twice", "broken", "counting"]
    one = (await served.client.get("/v1/graphs/counting")).json()
    assert one["inputs"] == {"n": "int"}
    assert [s["stage"] for s in one["steps"]] == [None, "source"]
    assert 'n1 -->|"int"| n2' in (await served.client.get("/v1/graphs/counting.mmd")).text
    picture = await served.client.get("/v1/graphs/counting.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert ET.fromstring(picture.text).tag.endswith("svg")
    assert "graph counting(n: int)" in (await served.client.get("/v1/graphs/counting.txt")).text
    assert (await served.client.get("/v1/graphs/counting.png")).status_code == 404


async def test_health_readiness_metrics_and_the_openapi_document(served):
    assert (await served.client.get("/health")).json() == {"status": "ok"}
    assert (await served.client.get("/ready")).json()["status"] == "ready"
    await served.post("twice", {"n": 1})
    await served.post("counting", {"n": 3, "stream": True})
    await served.settled()
    text = (await served.client.get("/metrics")).text
    assert 'headrace_requests_total{graph="twice",status="200"} 1.0' in text
    assert 'headrace_events_total{graph="counting"} 6.0' in text
    assert 'headrace_calls_outstanding{shard="0",stage="source"} 0.0' in text
    assert 'headrace_replicas{shard="0",stage="source"} 1.0' in text
    assert 'headrace_step_served_seconds_count{graph="twice",step="double"} 1.0' in text
    assert 'headrace_step_hop_seconds_count{graph="counting",step="count"} 1.0' in text
    document = (await served.client.get("/openapi.json")).json()
    assert document["paths"]["/v1/graphs/twice"]["post"]["requestBody"]["required"]


async def test_before_its_graphs_have_started_a_gateway_lives_and_is_not_ready(served):
    served.gateway._running = {}
    assert (await served.client.get("/health")).status_code == 200
    ready = await served.client.get("/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "starting")
    answer = await served.post("twice", {"n": 1})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_two_streams_do_not_share_an_id(served):
    body = {"n": 1, "stream": True}
    async with served.client.stream("POST", "/v1/graphs/endless", json=body, headers={"x-request-id": "one"}):
        second = await served.post("endless", body, **{"x-request-id": "one"})
        assert second.status_code == 409
    await served.settled()


class TestFewPlaces:
    @pytest.fixture
    def config(self):
        return GatewayConfig(active=1, waiting=1)

    async def test_who_finds_no_place_is_told_when_to_come_back_and_who_waits_is_served(self, served):
        async with served.client.stream("POST", "/v1/graphs/endless", json={"n": 1, "stream": True}):
            waiting = asyncio.create_task(served.post("twice", {"n": 4}))
            while not served.gateway._admission.waiting:
                await asyncio.sleep(0.005)
            for body in ({"n": 1}, {"n": 1, "stream": True}):
                name = "endless" if "stream" in body else "twice"
                refused = await served.post(name, body)
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
        assert (await waiting).json()["result"] == 8
        await served.settled()

    async def test_waiting_ends_with_the_deadline(self, served):
        async with served.client.stream("POST", "/v1/graphs/endless", json={"n": 1, "stream": True}):
            answer = await served.post("twice", {"n": 1, "timeout_seconds": 0.1})
            assert answer.status_code == 504
            assert "waiting for a place" in answer.json()["message"]
        await served.settled()


class TestStalledClient:
    @pytest.fixture
    def config(self):
        return GatewayConfig(stall_seconds=0.3, heartbeat_seconds=0.05, ahead=8, body_bytes=1 << 22)

    async def test_a_client_that_takes_nothing_is_given_up_and_the_producer_stops_within_its_credits(self, served):
        port = served.client.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        body = json.dumps({"kibibytes": 100_000, "stream": True}).encode()
        head = f"POST /v1/graphs/filling HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        await reader.readuntil(b"id: ")
        await asyncio.wait_for(served.source.stopped.wait(), 10)
        assert served.source.made < 20_000  # what the kernel's buffers swallowed, and no more than some credits
        await served.settled()
        writer.close()

    async def test_an_idle_stream_sends_comments(self, served):
        async with served.client.stream("POST", "/v1/graphs/endless", json={"n": 1, "stream": True}) as answer:
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                if text.count(":\n\n") >= 3:
                    break
        assert [event for _, event, _ in events(text)] == ["item"]
        await served.settled()


async def test_the_dashboard_asks_for_metrics_that_there_are(served):
    dashboard = json.loads((Path(__file__).parents[3] / "deploy" / "grafana.json").read_text())
    asked = {name for panel in dashboard["panels"] for target in panel["targets"]
             for name in re.findall(r"headrace_\w+", target["expr"])}  # fmt: skip
    await served.post("twice", {"n": 1})
    await served.post("counting", {"n": 3, "stream": True})
    served.gateway._metrics.partial("twice")
    scope = Scope(trace=Trace())
    scope.trace.record("count", 0.0, 1.0, 0.0, 1.0, "", 8)
    scope.losses.append(Loss("count", "source", (0,), (1.0,)))
    served.gateway._metrics.ran("counting", scope)
    await served.settled()
    text = (await served.client.get("/metrics")).text
    assert len(asked) >= 17
    assert {name for name in asked if not re.search(rf"^{name}[ {{]", text, re.MULTILINE)} == set()
