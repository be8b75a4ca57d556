"""Log lines: sentences for people, one JSON object a line for programs, the request's id on either."""

from __future__ import annotations

import io
import json
import logging
import re

import httpx
import pytest

from engine.graph import graph
from engine.scope import Scope, entered
from engine.step import step
from serve.gateway.app import Gateway
from serve.gateway.logs import JsonLines, TextLines, lines, log_to


@step
def warned(n: int) -> int:
    logging.getLogger("operators.some").warning("%d is odd", n)
    return n


@step
def fails(n: int) -> int:
    raise ZeroDivisionError(n)


@graph
def talking(n: int) -> int:
    return warned(n)


@graph
def broken(n: int) -> int:
    return fails(n)


@pytest.fixture
def written(request):
    """What is logged meanwhile, in the form that the test asks for."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    root, level = logging.getLogger(), logging.getLogger().level
    log_to(handler, request.param)
    yield out
    logging.captureWarnings(capture=False)
    root.removeHandler(handler)
    root.setLevel(level)


async def asked(*names: str, id: str = "mine-1") -> None:
    gateway = Gateway([talking, broken])
    await gateway.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app), base_url="http://test") as client:
        for name in names:
            await client.post(f"/v1/graphs/{name}", json={"n": 3}, headers={"x-request-id": id})
    await gateway.aclose()


def ours(out: io.StringIO) -> list[str]:
    return [line for line in out.getvalue().splitlines() if "httpx" not in line and "HTTP Request" not in line]


@pytest.mark.parametrize("written", ["json"], indirect=True)
async def test_every_line_of_a_request_has_its_id_and_the_access_line_has_fields(written):
    await asked("talking", "broken", "nowhere")
    said = [json.loads(line) for line in ours(written)]
    assert {line["request_id"] for line in said} == {"mine-1"}
    warning, talked, failure, failed, unknown = said
    assert (warning["level"], warning["logger"], warning["message"]) == ("warning", "operators.some", "3 is odd")
    assert {k: talked[k] for k in ("graph", "method", "path", "status")} == {
        "graph": "talking", "method": "POST", "path": "/v1/graphs/talking", "status": 200,
    }  # fmt: skip
    assert talked["milliseconds"] > 0
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", talked["time"])
    assert failure["level"] == "error"
    assert "ZeroDivisionError: 3" in failure["error"]
    assert (failed["status"], unknown["status"], "graph" in unknown) == (500, 404, False)


@pytest.mark.parametrize("written", ["text"], indirect=True)
async def test_text_is_a_sentence_with_the_id_at_its_end(written):
    await asked("talking")
    warning, access = ours(written)
    assert re.fullmatch(r"\d\d:\d\d:\d\d 3 is odd mine-1", warning)
    assert re.fullmatch(r"\d\d:\d\d:\d\d POST /v1/graphs/talking 200 \d+ ms mine-1", access)


@pytest.mark.parametrize("written", ["text", "json"], indirect=True)
async def test_no_path_makes_a_second_line(written):
    await asked("a%0ab%0dc%C2%85d%E2%80%A8e%ED%A0%80f")
    (line,) = ours(written)
    assert "404" in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_text_makes_a_line_fail(form):
    record = logging.makeLogRecord({"msg": "half \ud800 a pair, \x1b[31m and a nul \0", "path": "\udfff"})
    assert lines(form).format(record).isprintable() or form == "text"


def test_the_scope_gives_the_id_unless_the_line_has_one():
    record = logging.makeLogRecord({"msg": "working", "levelname": "INFO"})
    assert "request_id" not in json.loads(JsonLines().format(record))
    with entered(Scope("r7")):
        assert json.loads(JsonLines().format(record))["request_id"] == "r7"
        assert TextLines("%(message)s").format(record) == "working r7"
        record.request_id = "r8"
        assert json.loads(JsonLines().format(record))["request_id"] == "r8"
