from __future__ import annotations

import asyncio
import gc
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
import pytest_asyncio
import xllamacpp

from engine.errors import InvalidInput, QueueFull
from operators.messages import ChatMessage, Finish, Text, Usage
from operators.models.language import ModelFailed
from operators.models.llamacpp import LlamaCppConfig, model_path
from operators.models.openai_compatible import OpenAICompatible, OpenAIConfig, estimated_tokens
from tests.language_model_suite import LanguageModelSuite, a_prompt, idle, leave_after_deltas, reply_of

KEY = "sesame"


@pytest.fixture(scope="module")
def llama_server():
    """A real endpoint: llama.cpp's own HTTP server, with SmolLM2."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model_path(LlamaCppConfig()))
    params.n_parallel, params.n_ctx, params.n_batch = 4, 4 * 512, 8
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.port, params.api_keys, params.ui, params.verbosity, params.cache_ram_mib = 0, [KEY], False, 0, 0
    held = [xllamacpp.Server(params)]
    yield held[0].listening_address
    held.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(llama_server):
    config = OpenAIConfig(base_url=f"{llama_server}/v1", model="smollm2", api_key=KEY, context_tokens=512)
    opened = OpenAICompatible.open(config)
    yield opened
    await opened.aclose()


class TestOpenAICompatible(LanguageModelSuite):
    async def test_its_counts_are_the_endpoints(self, model):
        await model.count_tokens(["fox"])
        assert not model.statistics().estimated_counts

    async def test_a_cancel_reaches_the_endpoint(self, model, llama_server):
        for n in range(6):
            await leave_after_deltas(model, a_prompt(f"{n}?", max_tokens=300), 1)
        await idle(model)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client, asyncio.timeout(30):
            while any(slot["is_processing"] for slot in (await client.get(f"{llama_server}/slots")).json()):
                await asyncio.sleep(0.02)

    async def test_a_wrong_key_is_named_as_the_cause(self, llama_server):
        async with opened(OpenAIConfig(base_url=f"{llama_server}/v1", model="smollm2", api_key="wrong")) as stranger:
            with pytest.raises(ModelFailed, match=r"HTTP 401.*check api_key") as caught:
                await reply_of(stranger, a_prompt())
            assert caught.value.status == 401
            assert "wrong" not in str(caught.value)


@dataclass
class Endpoint:
    """A scripted endpoint: it answers every request with the same bytes, then closes or hangs."""

    answer: list[bytes]
    hang: bool = False
    requests: list[tuple[str, dict]] = field(default_factory=list)
    open_connections: int = 0
    address: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(int(h.split(":")[1]) for h in head.split("\r\n") if h.lower().startswith("content-length"))
            self.requests.append((head, json.loads(await reader.readexactly(length))))
            for piece in self.answer:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)  # so that the client sees pieces, not one whole
            if self.hang:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left, while it was answered or before it had asked
        finally:
            writer.close()
            self.open_connections -= 1


@asynccontextmanager
async def scripted(*answer: bytes, hang: bool = False):
    endpoint = Endpoint(list(answer), hang)
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    endpoint.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield endpoint


@asynccontextmanager
async def opened(config: OpenAIConfig):
    model = OpenAICompatible.open(config)
    try:
        yield model
    finally:
        await model.aclose()


@asynccontextmanager
async def model_of(*answer: bytes, hang: bool = False, **changes):
    async with (
        scripted(*answer, hang=hang) as endpoint,
        opened(OpenAIConfig(**{"base_url": endpoint.address, "model": "m"} | changes)) as model,
    ):
        yield model, endpoint


def head(status: str = "200 OK", kind: str = "text/event-stream", *more: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *more, "", ""]).encode()


def event(text: str | None = None, reason: str | None = None, **more) -> bytes:
    body = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **more}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


async def test_a_reply_is_read_whatever_the_network_cuts_in_pieces():
    stream = event("狐狸\u2028和") + b": ping\n\n" + event("🦊") + event(reason="stop") + USAGE + DONE
    async with model_of(head(), *(stream[i : i + 1] for i in range(len(stream)))) as (model, _):
        deltas = [delta async for delta in model.generate(a_prompt())]
    assert deltas == [Text("狐狸\u2028和"), Text("🦊"), Finish("stop", Usage(4, 2), "m")]


async def test_the_request_carries_model_limit_key_and_extras():
    changes = {"api_key": KEY, "max_tokens_field": "max_completion_tokens", "extra": {"top_k": 3}, "seed": 5}
    async with model_of(head(), event("x", "stop"), USAGE, DONE, **changes) as (model, endpoint):
        await reply_of(model, a_prompt("Hi"))
    (text, body) = endpoint.requests[0]
    assert text.startswith("POST /v1/chat/completions HTTP/1.1")
    assert f"Authorization: Bearer {KEY}" in text
    assert (body["model"], body["max_completion_tokens"], body["top_k"], body["seed"]) == ("m", 12, 3, 5)
    assert "max_tokens" not in body
    assert body["messages"] == [{"role": "user", "content": "Hi"}]


async def test_usage_that_the_endpoint_leaves_out_is_estimated():
    async with model_of(head(), event("abcdefg", "stop"), DONE) as (model, _):
        _, finish = await reply_of(model, a_prompt("123456"))
        assert finish.usage == Usage(prompt_tokens=2 + 4, completion_tokens=3)
        assert model.statistics().estimated_counts


async def test_a_stream_that_is_cut_is_an_error_after_its_deltas():
    size = f"{len(event('x')):x}\r\n".encode()
    chunked = head("200 OK", "text/event-stream", "Transfer-Encoding: chunked") + size + event("x") + b"\r\n"
    for answer, said in [(head() + event("x"), "broke off after 1 char"), (chunked, "connection to http.* broke")]:
        async with model_of(answer) as (model, _):
            texts = []
            with pytest.raises(ModelFailed, match=said):
                async for delta in model.generate(a_prompt()):
                    texts.append(delta)
            assert texts == [Text("x")]
            assert (model.statistics().failed, model.statistics().open_requests) == (1, 0)


async def test_an_error_inside_the_stream_is_raised():
    async with model_of(head(), event("x"), b'data: {"error":{"message":"out of memory","code":500}}\n\n') as (
        model,
        _,
    ):
        with pytest.raises(ModelFailed, match=r"HTTP 500\): out of memory"):
            await reply_of(model, a_prompt())


@pytest.mark.parametrize("noise", [b"data: <html>\n\n", b'data: {"choices": 3}\n\n', b"data: \xff\xfe\n\n"])
async def test_an_event_that_is_no_chunk_is_an_error(noise):
    async with model_of(head(), event("x"), noise) as (model, _):
        with pytest.raises(ModelFailed, match="no chat completion chunk"):
            await reply_of(model, a_prompt())


async def test_an_answer_that_is_no_stream_is_an_error():
    async with model_of(head("200 OK", "application/json"), b'{"choices":[{"message":{"content":"x"}}]}') as (model, _):
        with pytest.raises(ModelFailed, match="broke off after 0 characters"):
            await reply_of(model, a_prompt())


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        ("500 Internal Server Error", b'{"error":{"message":"boom"}}', ModelFailed, r"HTTP 500\): boom"),
        ("502 Bad Gateway", b"<html>nobody home</html>", ModelFailed, r"HTTP 502\): <html>nobody home"),
        ("503 Service Unavailable", b"", ModelFailed, "it gives no reason"),
        ("404 Not Found", b'{"error":"no model m"}', ModelFailed, "no model m; check base_url and model"),
        ("400 Bad Request", b'{"error":{"message":"context length is 8"}}', InvalidInput, "context length is 8"),
        ("301 Moved Permanently", b"", ModelFailed, "HTTP 301"),
        ("500 Internal Server Error", b"x" * 300_000, ModelFailed, "xxx"),
    ],
)
async def test_a_status_that_is_not_200_is_an_error_with_the_endpoints_words(status, body, kind, said):
    async with model_of(head(status, "application/json"), body) as (model, _):
        with pytest.raises(kind, match=said) as caught:
            await reply_of(model, a_prompt())
    assert getattr(caught.value, "status", int(status[:3])) == int(status[:3])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("header", "seconds"), [(["Retry-After: 7"], 7.0), ([], 1.0), (["Retry-After: Fri"], 1.0)])
async def test_too_many_requests_says_when_to_come_back(header, seconds):
    answer = head("429 Too Many Requests", "application/json", *header), b'{"error":{"message":"slow down"}}'
    async with model_of(*answer) as (model, _):
        with pytest.raises(QueueFull, match="slow down") as caught:
            await reply_of(model, a_prompt())
    assert caught.value.retry_after_s == seconds


async def test_nobody_at_the_address_is_an_error():
    async with scripted() as endpoint:
        pass  # the port was free a moment ago, and is again
    async with opened(OpenAIConfig(base_url=endpoint.address, model="m")) as model:
        for ask in (reply_of(model, a_prompt()), model.count_tokens(["x"])):
            with pytest.raises(ModelFailed, match="cannot reach http://127"):
                await ask


async def test_silence_is_an_error_at_the_timeout():
    for answer in ([], [head(), event("x")]):
        async with model_of(*answer, hang=True, timeout_s=0.1) as (model, _):
            with pytest.raises(ModelFailed, match=r"said nothing for 0\.1 s"):
                await reply_of(model, a_prompt())


async def cancelled(work: asyncio.Task, moment: int) -> None:
    """Cancel after `moment` turns of the loop or, beyond 25, after as many tenths of a millisecond."""
    for _ in range(min(moment, 25)):
        await asyncio.sleep(0)
    if moment > 25:
        await asyncio.sleep(moment / 10_000)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_two_hundred_replies_left_at_every_moment_leave_no_connection_task_or_place():
    async with model_of(head(), event("x"), hang=True, max_connections=2) as (model, endpoint):
        others = asyncio.all_tasks()
        for n in range(200):
            if n % 4:
                await cancelled(asyncio.create_task(reply_of(model, a_prompt())), n % 60)
            else:
                await leave_after_deltas(model, a_prompt(), 1)
        assert (model.statistics().cancelled, model.statistics().open_requests) == (200, 0)
        async with asyncio.timeout(10):
            while endpoint.open_connections:
                await asyncio.sleep(0.002)
        assert {task for task in asyncio.all_tasks() - others if "serve" not in repr(task)} == set()
        assert not model._clients
        await asyncio.gather(*(leave_after_deltas(model, a_prompt(), 1) for _ in range(4)))  # two at a time
    gc.collect()  # a response left open would warn here, and warnings are errors


async def test_counts_cancelled_at_every_moment_leave_the_tokenizer_usable():
    async with model_of(head("200 OK", "application/json"), b'{"tokens":[1,2]}', max_connections=2) as (model, _):
        for n in range(60):
            await cancelled(asyncio.create_task(model.count_tokens(["x"] * 3)), n % 20)
        assert await model.count_tokens(["x"]) == [2]


async def test_closing_ends_open_replies():
    async with model_of(head(), event("x"), hang=True) as (model, _):
        reply = model.generate(a_prompt())
        assert await anext(reply) == Text("x")
        rest = asyncio.create_task(anext(reply))
        await asyncio.sleep(0)
        await model.aclose()
        with pytest.raises(ModelFailed):
            await rest
        with pytest.raises(ModelFailed, match="closed"):
            await reply_of(model, a_prompt())
        with pytest.raises(ModelFailed, match="closed"):
            await model.count_tokens(["x"])


@pytest.mark.parametrize("status", ["404 Not Found", "401 Unauthorized", "200 OK"])
async def test_without_a_tokenizer_counts_are_estimated_and_say_so(status):
    async with model_of(head(status, "text/html"), b"<html></html>") as (model, endpoint):
        assert not model.statistics().estimated_counts
        assert await model.count_tokens(["abcdef", "狐狸", ""]) == [2, 2, 0]
        assert await model.count_prompt([ChatMessage("user", "abcdef")]) == 2 + 4
        asked = len(endpoint.requests)
        assert await model.count_tokens(["abc"] * 50) == [1] * 50
        assert len(endpoint.requests) == asked  # a route that is missing is not asked again
        assert model.statistics().estimated_counts


async def test_vllms_counting_route_is_understood():
    body = b'{"count":3,"max_model_len":1024,"tokens":[5,6,7],"token_strs":null}'
    async with model_of(head("200 OK", "application/json"), body) as (model, endpoint):
        assert await model.count_tokens(["x"]) == [3]
        assert await model.count_prompt([ChatMessage("user", "x")]) == 3
    assert endpoint.requests[0][0].startswith("POST /tokenize ")


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abc", 1), ("abcd", 2), ("狐", 1), ("🦊", 2)])
def test_an_estimate_is_a_token_per_three_bytes(text, tokens):
    assert estimated_tokens(text) == tokens


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000', expected http"),
        ({"base_url": "http://"}, "base_url is 'http://', expected http"),
        ({"base_url": "http://[::1/v1"}, "base_url is"),
        ({"base_url": "http://host:99999/v1"}, "base_url is"),
        ({"model": ""}, "model is empty"),
        ({"context_tokens": 0}, "context_tokens is 0"),
        ({"max_connections": 0}, "max_connections is 0"),
        ({"timeout_s": 0}, "timeout_s is 0"),
    ],
)
def test_a_configuration_out_of_range_is_refused(changes, said):
    with pytest.raises(InvalidInput, match=said):
        OpenAIConfig(**{"base_url": "http://h/v1", "model": "m"} | changes)


def test_the_key_is_not_shown():
    config = OpenAIConfig(base_url="http://h/v1", model="m", api_key=KEY, temperature=0.5)
    assert KEY not in repr(config)
    assert KEY not in str(config.__rich_repr__())
    assert "api_key='***', context_tokens=8192, temperature=0.5" in repr(config)
    assert "api_key=None" in repr(OpenAIConfig(base_url="http://h/v1", model="m"))
