"""Whatever a client sends, it gets an answer that says what was wrong: no 500, no hang, nothing left behind."""

from __future__ import annotations

import json

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
NAMES = st.sampled_from(["n", "words", "stream", "timeout_seconds", "priority", "resume_seconds", "kibibytes"])
VALUES = (
    st.integers(-5, 150)
    | st.booleans()
    | st.floats()
    | st.sampled_from(["batch", "interactive", "", "\0", "\u2028"])
    | ODD_JSON
)
BODIES = st.one_of(
    st.binary(max_size=60),
    ODD_JSON.map(lambda value: json.dumps(value).encode(errors="surrogatepass")),
    st.dictionaries(NAMES, VALUES, max_size=4).map(lambda value: json.dumps(value).encode(errors="surrogatepass")),
)
HEADERS = st.dictionaries(
    st.sampled_from(["accept", "x-request-timeout-seconds", "x-request-id", "last-event-id", "content-type"]),
    st.sampled_from(
        ["text/event-stream", "0.2", "nan", "-1", "a:1", "é".encode("latin-1").decode("latin-1"), "x" * 100, ""]
    ),
    max_size=3,
)
GRAPHS = st.sampled_from(["twice", "counting", "speaking", "breaking", "thrice"])


async def test_any_request_gets_a_telling_answer(served):
    transport = httpx.ASGITransport(served.gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
        requests = []

        @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(GRAPHS, BODIES, HEADERS)
        def drawn(name, body, headers):
            requests.append((name, body, headers))

        drawn()
        for name, body, headers in requests:
            encoded = {key: value.encode("latin-1") for key, value in headers.items()}
            answer = await client.post(f"/v1/graphs/{name}", content=body, headers=encoded, timeout=10)
            told = (name, body, headers, answer.text[:300])
            assert answer.status_code in {200, 400, 404, 409, 410, 503, 504}, told
            if answer.status_code != 200:
                assert answer.json()["message"], told
            elif answer.headers["content-type"].startswith("text/event-stream"):
                assert "event: done" in answer.text or "event: error" in answer.text, told
            else:
                assert "result" in answer.json(), told
    await served.settled()
