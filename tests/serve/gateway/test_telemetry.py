"""Spans of a gateway, through OpenTelemetry's SDK, to memory and to a collector that speaks OTLP over HTTP."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.testclient import TestClient

from engine.errors import InvalidInput
from engine.graph import graph
from engine.spans import SpanBuffer, SpanContext
from engine.stage import Stage
from engine.stream import Stream
from serve.gateway.app import Gateway
from serve.gateway.config import GatewayConfig
from serve.gateway.telemetry import Telemetry, TelemetryConfig
from serve.settings import read_configuration
from tests.tracing import Batching

CALLER = SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")

afar = Stage("afar", Batching, isolated=True)
_double, _together, _counted = (
    afar.step(Batching.double),
    afar.step(Batching.together),
    afar.step(Batching.counted),
)


@graph
def doubled(n: int) -> int:
    return _double(n)


@graph
def joined(n: int) -> int:
    return _together(n)


@graph
def counting(n: int) -> Stream[int]:
    return _counted(n)


class Collector:
    """Takes spans over OTLP/HTTP on a port of its own."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        outer = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.requests.append(ExportTraceServiceRequest.FromString(body))
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                outer.paths.append(self.path)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> dict[str, object]:
        found = [s for r in self.requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]
        return {span.name: span for span in found}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@asynccontextmanager
async def gateway(
    telemetry: TelemetryConfig | None, memory: InMemorySpanExporter | None = None
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway that has started; spans go to `memory`, if it is given, and are there when the block is left."""
    made = Gateway([doubled, joined, counting], GatewayConfig(telemetry=telemetry))
    if memory is not None:
        await made._telemetry.aclose()
        made._telemetry = Telemetry(telemetry, memory)
    await made.start()
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(made.app), base_url="http://test") as client:
            yield made, client
    finally:
        await made.aclose()


def named(memory: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = memory.get_finished_spans()
    assert len({s.name for s in spans}) == len(spans)
    return {s.name: s for s in spans}


async def test_a_request_is_one_trace_from_http_to_the_batch_in_a_child_process(collector):
    config = TelemetryConfig(otlp_endpoint=collector.url + "/", service_name="mine", headers={"x-key": "secret"})
    async with gateway(config) as (_, client):
        answer = await client.post("/v1/graphs/doubled", json={"n": 4}, headers={"traceparent": CALLER.to_header()})
        assert answer.json()["result"] == 8
    spans = collector.spans
    way = ["POST /v1/graphs/doubled", "double", "Batching.double", "doubler batch"]
    assert set(spans) == set(way)
    assert {s.trace_id.hex() for s in spans.values()} == {CALLER.trace_id}
    parents = [spans[name].parent_span_id.hex() for name in way]
    assert parents == [CALLER.span_id, *(spans[name].span_id.hex() for name in way[:-1])]
    assert [link.span_id.hex() for link in spans["doubler batch"].links] == [spans["Batching.double"].span_id.hex()]
    (resource,) = {a.value.string_value for r in collector.requests for rs in r.resource_spans
                   for a in rs.resource.attributes if a.key == "service.name"}  # fmt: skip
    assert resource == "mine"
    assert set(collector.paths) == {"/v1/traces"}
    assert {h["x-key"] for h in collector.headers} == {"secret"}


async def test_the_first_span_says_what_http_said():
    memory = InMemorySpanExporter()
    async with gateway(TelemetryConfig(), memory) as (_, client):
        id_ = (await client.post("/v1/graphs/doubled", json={"n": 4})).headers["x-request-id"]
        await client.post("/v1/graphs/nowhere", json={"n": 4})
        await client.get("/v1/graphs")
    spans = named(memory)
    first, unknown = spans["POST /v1/graphs/doubled"], spans["POST"]
    assert (first.kind, first.parent, first.status.status_code) == (SpanKind.SERVER, None, StatusCode.UNSET)
    assert first.attributes["headrace.request_id"] == id_
    assert first.attributes["http.response.status_code"] == 200
    assert spans["double"].attributes["headrace.batch_items"] == 1
    assert first.start_time <= spans["double"].start_time <= spans["double"].end_time <= first.end_time
    # the client's mistake is no failure of ours
    assert (unknown.attributes["http.response.status_code"], unknown.status.status_code) == (404, StatusCode.UNSET)
    assert len(spans) == 5


async def test_a_batch_is_linked_to_all_requests_in_it():
    memory = InMemorySpanExporter()
    async with gateway(TelemetryConfig(), memory) as (_, client):
        await asyncio.gather(*(client.post("/v1/graphs/joined", json={"n": n}) for n in (1, 2)))
    spans = memory.get_finished_spans()
    (batch,) = [s for s in spans if s.name == "doubler batch"]
    members = {s.context.span_id: s for s in spans if s.name == "Batching.together"}
    assert {link.context.span_id for link in batch.links} == set(members)
    assert len({s.context.trace_id for s in members.values()}) == 2


async def test_streams_and_failures_in_them_are_told():
    memory = InMemorySpanExporter()
    async with gateway(TelemetryConfig(), memory) as (made, client):
        for n in (3, -1):
            await client.post("/v1/graphs/counting", json={"n": n, "stream": True})
        while made._admission.active:
            await asyncio.sleep(0.005)
    spans = memory.get_finished_spans()
    firsts = [s for s in spans if s.name == "POST /v1/graphs/counting"]
    assert [s.attributes["headrace.events"] for s in firsts] == [3, 0]
    assert [s.status.status_code for s in firsts] == [StatusCode.UNSET, StatusCode.ERROR]
    for name in ("counted", "Batching.counted"):
        failed = [s for s in spans if s.name == name and s.status.status_code is StatusCode.ERROR]
        assert "cannot count down" in failed[0].status.description


async def test_a_socket_is_a_request_too():
    memory = InMemorySpanExporter()
    async with gateway(TelemetryConfig(), memory) as (made, _):

        def converse() -> None:
            with TestClient(made.app).websocket_connect("/v1/graphs/nowhere/socket") as socket:
                socket.send_json({"n": 1})
                assert "there is no graph" in socket.receive_json()["data"]["message"]

        await asyncio.to_thread(converse)
    assert named(memory)["WS"].attributes["http.response.status_code"] == 404


@pytest.mark.parametrize(("header", "ratio", "recorded"), [
    (None, 0.0, False), (None, 1.0, True),
    (CALLER.to_header(), 0.0, True), (CALLER.to_header()[:-1] + "0", 1.0, False), ("no header", 1.0, True),
])  # fmt: skip
async def test_the_caller_decides_what_is_recorded_else_the_ratio(header, ratio, recorded):
    memory = InMemorySpanExporter()
    async with gateway(TelemetryConfig(sample_ratio=ratio), memory) as (_, client):
        await client.post(
            "/v1/graphs/doubled", json={"n": 1}, headers={} if header is None else {"traceparent": header}
        )
    assert bool(memory.get_finished_spans()) == recorded


async def test_a_collector_that_is_away_disturbs_no_request(caplog):
    config = TelemetryConfig(otlp_endpoint="http://127.0.0.1:9", timeout_seconds=0.2)
    async with gateway(config) as (_, client):
        assert (await client.post("/v1/graphs/doubled", json={"n": 1})).json()["result"] == 2
    assert "xport" in caplog.text


async def test_spans_that_are_too_many_are_told(caplog):
    memory = InMemorySpanExporter()
    telemetry = Telemetry(TelemetryConfig(), memory)
    telemetry._buffer = SpanBuffer(most=2)
    for _ in range(5):
        telemetry.arrived("POST").end()
    await telemetry.aclose()
    assert "3 spans were lost" in caplog.text
    assert len(memory.get_finished_spans()) == 2


async def test_by_default_there_is_no_telemetry():
    async with gateway(None) as (made, client):
        assert (await client.post("/v1/graphs/doubled", json={"n": 1})).json()["result"] == 2
        assert made._telemetry is None


def test_without_the_packages_it_is_told_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "serve.gateway.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InvalidInput, match=r"opentelemetry.* is not installed.*pip install 'headrace\[otel\]'"):
        Gateway([doubled], GatewayConfig(telemetry=TelemetryConfig()))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('otlp_endpoint = "localhost:4318"', "otlp_endpoint is 'localhost:4318'; expected a URL"),
        ("sample_ratio = 1.5", "sample_ratio is 1.5; expected a share"),
        ("timeout_seconds = 0", "timeout_seconds is 0"),
        ("rate = 1", "unknown field `rate`.*otlp_endpoint, service_name"),
    ],
)
def test_a_wrong_section_is_told_before_anything_starts(tmp_path, line, said):
    file = tmp_path / "headrace.toml"
    file.write_text(f"[serve.telemetry]\n{line}\n")
    with pytest.raises(InvalidInput, match=said):
        read_configuration(str(file))


def test_the_section_turns_it_on(tmp_path):
    file = tmp_path / "headrace.toml"
    file.write_text('[serve]\nlog = "json"\n[serve.telemetry]\nsample_ratio = 0.1\n')
    config = read_configuration(str(file)).serve
    assert (config.log, config.telemetry) == ("json", TelemetryConfig(sample_ratio=0.1))
