from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import pytest
import pytest_asyncio

from engine.clock import VirtualClock
from engine.errors import DeadlineExceeded, InvalidInput
from engine.scope import Scope, entered
from operators.messages import ChatMessage
from operators.models.language import ModelFailed
from operators.models.llamacpp import LlamaCpp, LlamaCppConfig, _Call, model_path
from tests.language_model_suite import LanguageModelSuite, a_prompt, idle, leave_after_deltas, reply_of

CONFIG = LlamaCppConfig(context_tokens=512, slots=3)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model():
    opened = LlamaCpp.open(CONFIG)
    yield opened
    await opened.aclose()


class TestLlamaCpp(LanguageModelSuite):
    async def test_it_knows_its_name_and_window(self, model):
        statistics = model.statistics()
        assert (statistics.model, statistics.context_tokens) == ("SmolLM2-135M-Instruct.Q4_1", 512)
        assert not statistics.estimated_counts

    async def test_after_a_cancel_llama_cpp_itself_is_idle(self, model):
        for deltas in (1, 2):
            await leave_after_deltas(model, a_prompt("Well?", max_tokens=200), deltas)
        await idle(model)
        async with asyncio.timeout(30):
            while any(slot["is_processing"] for slot in (await model._client.get("/slots")).json()):
                await asyncio.sleep(0.002)

    async def test_a_cancel_while_the_prompt_is_read_does_not_wait_for_its_end(self, model, monkeypatch):
        events, receive = [], _Call.receive
        monkeypatch.setattr(_Call, "receive", lambda call, event: events.append(event) or receive(call, event))
        reply = asyncio.create_task(reply_of(model, a_prompt("a b c d e f g h " * 50, max_tokens=5)))
        async with asyncio.timeout(30):
            while not events:
                await asyncio.sleep(0.002)
        reply.cancel()
        await idle(model)
        steps = [json.loads(event)["prompt_progress"] for event in events]  # a token would have none
        assert steps[-1]["processed"] < steps[-1]["total"]

    async def test_a_request_that_waits_for_a_slot_can_be_cancelled_and_expires(self, model):
        clock = VirtualClock()
        running = [asyncio.create_task(reply_of(model, a_prompt(f"{n}?", max_tokens=20))) for n in range(CONFIG.slots)]
        await asyncio.sleep(0)
        with entered(Scope("late", timeout_s=1, clock=clock)):
            late = asyncio.create_task(reply_of(model, a_prompt()))
        left = asyncio.create_task(reply_of(model, a_prompt()))
        await asyncio.sleep(0)
        left.cancel()
        await clock.advance(2)
        with pytest.raises(DeadlineExceeded):
            await late
        finishes = await asyncio.gather(*running)
        assert [finish.usage.completion_tokens for _, finish in finishes] == [20] * CONFIG.slots
        assert left.cancelled()
        await idle(model)

    async def test_a_schema_that_llama_cpp_cannot_follow_is_refused(self, model):
        for schema in ({"enum": []}, {"type": "array", "minItems": 100_000}):
            with pytest.raises(InvalidInput, match="refuses the request"):
                await reply_of(model, a_prompt(answer_schema=schema))
        await idle(model)

    async def test_its_http_face_wants_a_key(self, model):
        address = str(model._client.base_url)
        assert address.startswith("http://127.0.0.1:")

        def ask() -> int:
            body = json.dumps({"content": "fox"}).encode()
            request = urllib.request.Request(f"{address}/tokenize", body, {"Content-Type": "application/json"})
            try:
                return urllib.request.urlopen(request, timeout=10).status
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        assert await asyncio.to_thread(ask) == 401


async def test_closing_ends_open_replies_and_refuses_new_ones():
    model = LlamaCpp.open(LlamaCppConfig(context_tokens=256, slots=1))
    running, waiting = (asyncio.create_task(reply_of(model, a_prompt(max_tokens=200))) for _ in range(2))
    await asyncio.sleep(0.05)
    await model.aclose()
    for task in (running, waiting):
        with pytest.raises(ModelFailed, match="broke off"):
            await task
    with pytest.raises(ModelFailed, match="closed"):
        await reply_of(model, a_prompt())
    with pytest.raises(ModelFailed, match="closed"):
        await model.count_prompt([ChatMessage("user", "?")])
    await model.aclose()
    assert model.statistics().open_requests == 0


def test_a_model_that_is_no_gguf_file_is_refused(tmp_path):
    text, damaged = tmp_path / "notes.gguf", tmp_path / "damaged.gguf"
    text.write_text("not weights")
    damaged.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 200)
    for path, said in [
        (tmp_path / "missing.gguf", "No such file"),
        (tmp_path, "Is a directory"),
        (text, "not a GGUF file: it begins with b'not '"),
        (damaged, "cannot load"),
    ]:
        with pytest.raises(InvalidInput, match=said):
            LlamaCpp.open(LlamaCppConfig(model=str(path)))


def test_the_packaged_model_is_found_without_importing_its_package():
    assert model_path(LlamaCppConfig()).name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": ""}, "model is empty"),
        ({"context_tokens": 0}, "context_tokens is 0"),
        ({"slots": 0}, "slots is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"batch_tokens": -1}, "batch_tokens is -1"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
    ],
)
def test_a_configuration_out_of_range_is_refused(changes, said):
    with pytest.raises(InvalidInput, match=said):
        LlamaCppConfig(**changes)
