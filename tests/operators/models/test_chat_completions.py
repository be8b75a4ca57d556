from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidInput
from operators.messages import ChatMessage, Prompt, Text, Usage
from operators.models.chat_completions import (
    EVENT_BYTES,
    ChatReply,
    ErrorBody,
    SseReader,
    chat_chunk,
    chat_request,
    failure,
)
from operators.models.language import ModelFailed


def a_prompt(**changes) -> Prompt:
    messages = (ChatMessage("system", "Be brief."), ChatMessage("user", "Is water wet?"))
    return Prompt(**{"question": "", "messages": messages, "sources": (), "max_tokens": 9} | changes)


def a_reply() -> ChatReply:
    return ChatReply(a_prompt(), model="m", context_tokens=100)


def test_events_are_cut_at_blank_lines():
    reader = SseReader()
    assert reader.feed(b'data: {"a": 1}\n\ndata: [DONE]\n\n') == [b'{"a": 1}', b"[DONE]"]
    assert reader.feed(b"") == []


def test_comments_names_ids_and_carriage_returns_are_no_data():
    reader = SseReader()
    assert reader.feed(b": ping\n\nevent: x\nid: 7\nretry: 9\ndata:one\r\n\r\n\n\n") == [b"one"]


def test_an_event_of_several_data_lines_is_one_text():
    assert SseReader().feed(b"data: one\ndata: two\n\n") == [b"one\ntwo"]


def test_an_event_that_has_not_ended_is_not_given_out():
    reader = SseReader()
    assert reader.feed(b"data: one") == []
    assert reader.feed(b"\n") == []
    assert reader.feed(b"\n") == [b"one"]


TEXTS = st.lists(st.text(min_size=1), min_size=1, max_size=5)


@given(TEXTS, st.data())
def test_events_do_not_depend_on_where_the_network_cuts(texts, data):
    events = [msgspec.json.encode({"t": text}) for text in texts]  # U+2028 and emoji stay as they are
    stream = b"".join(b"data: " + event + b"\n\n" for event in events)
    reader, found, at = SseReader(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += reader.feed(stream[at : at + size])
        at += size
    assert found == events


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: " + b"x" * 65536 + b"\n"])
def test_an_endless_event_is_an_error_not_a_full_memory(piece):
    reader = SseReader()
    with pytest.raises(ModelFailed, match="more than"):
        for _ in range(EVENT_BYTES // 65536 + 1):
            reader.feed(piece)


def test_a_request_says_what_every_endpoint_understands():
    body = chat_request(a_prompt(), temperature=0.5, top_p=0.9, seed=None)
    assert body == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is water wet?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.9,
    }
    schema = {"type": "boolean"}
    body = chat_request(a_prompt(answer_schema=schema), temperature=0, top_p=1, seed=3)
    assert body["response_format"]["json_schema"]["schema"] == schema
    assert body["seed"] == 3


def test_a_reply_is_read_from_role_text_finish_and_usage_events():
    reply = a_reply()
    events = [
        b'{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}',
        b'{"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}',
        b'{"choices":[{"index":0,"delta":{"content":"Y\xc3\xa9s"},"finish_reason":null}],"usage":null}',
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}',
    ]
    assert [reply.read(chat_chunk.decode(event)) for event in events] == [None, None, Text("Yés"), None, None]
    finish = reply.finish(reply.reason, reply.usage)
    assert (finish.reason, finish.usage, finish.model) == ("stop", Usage(4, 2), "m")


@pytest.mark.parametrize("error", ["out of memory", {"message": "out of memory", "code": 500}])
def test_an_error_event_ends_the_reply(error):
    with pytest.raises(ModelFailed, match="m failed.*out of memory"):
        a_reply().read(chat_chunk.decode(msgspec.json.encode({"error": error})))


@pytest.mark.parametrize(
    ("error", "status", "kind", "said"),
    [
        (ErrorBody(message="no such field"), 400, InvalidInput, r"host refuses the request \(HTTP 400\): no such"),
        (ErrorBody(message="bad value"), 422, InvalidInput, "bad value"),
        (ErrorBody(message="who are you"), 401, ModelFailed, "who are you; check api_key"),
        (ErrorBody(message="no model x", code="model_not_found"), 404, ModelFailed, "check base_url and model"),
        (ErrorBody(), 502, ModelFailed, r"host failed \(HTTP 502\): it gives no reason"),
        (
            ErrorBody(message="too long", type="exceed_context_size_error", code=400, n_prompt_tokens=9, n_ctx=8),
            None,
            InvalidInput,
            "prompt has 9 tokens and the model's window holds 8",
        ),
    ],
)
def test_a_failure_says_whose_fault_it_is(error, status, kind, said):
    found = failure(error, "host", status)
    assert type(found) is kind
    with pytest.raises(kind, match=said):
        raise found
