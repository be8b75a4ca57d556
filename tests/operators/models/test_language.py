from __future__ import annotations

import asyncio
import pickle

import pytest

from engine.errors import InvalidInput
from operators.messages import ChatMessage, Finish, Prompt, Text, Usage
from operators.models.language import ModelFailed, Outcomes, Reply, ReplyRejected, prompt_too_long

YES_OR_NO = {
    "type": "object",
    "properties": {"answer": {"$ref": "#/$defs/verdict"}},
    "required": ["answer"],
    "$defs": {"verdict": {"enum": ["yes", "no"]}},
}
USAGE = Usage(prompt_tokens=5, completion_tokens=3)


def a_prompt(**changes) -> Prompt:
    messages = (ChatMessage("user", "Is water wet?"),)
    return Prompt(**{"question": "", "messages": messages, "sources": (), "max_tokens": 9} | changes)


def a_reply(**changes) -> Reply:
    return Reply(a_prompt(**changes), model="m", context_tokens=100)


def test_a_finished_reply_ends_in_its_reason_usage_and_model():
    reply = a_reply()
    assert [reply.add("Ye"), reply.add("s")] == [Text("Ye"), Text("s")]
    assert reply.finish("length", USAGE) == Finish(reason="length", usage=USAGE, model="m")
    assert reply.text == "Yes"


@pytest.mark.parametrize("reason", [None, "abort", "content_filter"])
def test_a_reply_that_did_not_end_by_itself_has_failed(reason):
    with pytest.raises(ModelFailed, match="broke off" if reason is None else reason):
        a_reply().finish(reason, USAGE)


def test_a_reply_without_usage_has_failed():
    with pytest.raises(ModelFailed, match="broke off"):
        a_reply().finish("stop", None)


def test_a_reply_that_follows_its_schema_is_accepted():
    reply = a_reply(answer_schema=YES_OR_NO)
    reply.add('{"answer":')
    reply.add(' "yes"}\n')
    assert reply.finish("stop", USAGE).reason == "stop"


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        ('{"answer": "perhaps"}', "stop", r"breaks its schema at \$\.answer: 'perhaps' is not one of"),
        ("{}", "stop", "'answer' is a required property"),
        ("yes", "stop", "not JSON"),
        ("", "stop", "not JSON"),
        ('{"answer": "yes"}', "length", "cut after 3 tokens"),  # by chance whole: nobody promised that it is
    ],
)
def test_a_reply_that_breaks_its_schema_is_rejected(text, reason, said):
    reply = a_reply(answer_schema=YES_OR_NO)
    reply.add(text)
    with pytest.raises(ReplyRejected, match=said) as caught:
        reply.finish(reason, USAGE)
    assert (caught.value.text, caught.value.usage) == (text, USAGE)
    assert pickle.loads(pickle.dumps(caught.value)).text == text
    assert not reply.finished


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, "not a JSON schema, at"),
        ({"properties": {"a": {"minLength": "two"}}}, "not a JSON schema, at"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "not in it"),  # and is not fetched
        ({"properties": {"a": {"items": [{"$ref": "#/$defs/missing"}]}}}, "not a JSON schema|not in it"),
        ({"anyOf": [{"$ref": "#/$defs/missing"}]}, "'#/\\$defs/missing', which is not in it"),
    ],
)
def test_a_schema_that_is_none_or_refers_outside_is_refused_before_the_model_runs(schema, said):
    with pytest.raises(InvalidInput, match=said):
        a_reply(answer_schema=schema)


def test_a_schema_may_refer_to_itself():
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    reply = a_reply(answer_schema=tree)
    reply.add('{"kids": [{"kids": []}, {"kids": [3]}]}')
    with pytest.raises(ReplyRejected, match=r"at \$\.kids\[1\]\.kids\[0\]: 3 is not of type 'object'"):
        reply.finish("stop", USAGE)


@pytest.mark.parametrize(
    ("changes", "said"), [({"max_tokens": 0}, "max_tokens is 0"), ({"messages": ()}, "no messages")]
)
def test_a_prompt_that_asks_for_nothing_is_refused(changes, said):
    with pytest.raises(InvalidInput, match=said):
        a_reply(**changes)


def test_a_prompt_that_was_counted_too_long_is_refused_with_both_numbers():
    with pytest.raises(InvalidInput, match="has 101 tokens and the model's window holds 100"):
        a_reply(prompt_tokens=101)
    a_reply(prompt_tokens=100)


def test_the_errors_survive_pickling():
    for error in (ModelFailed("gone", status=503), prompt_too_long(9, 8)):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("ends_with", "finished", "counts"),
    [
        (None, True, (1, 0, 0)),
        (GeneratorExit(), True, (1, 0, 0)),  # the reader left at Finish, before the generator's last line
        (GeneratorExit(), False, (0, 1, 0)),
        (asyncio.CancelledError(), False, (0, 1, 0)),
        (ModelFailed("gone"), False, (0, 0, 1)),
    ],
)
def test_every_reply_is_counted_once(ends_with, finished, counts):
    outcomes, reply = Outcomes(), a_reply()

    def run():
        with outcomes.counting(reply):
            assert outcomes.statistics("m", 100).open_requests == 1
            if finished:
                reply.finish("stop", USAGE)
            if ends_with:
                raise ends_with

    if ends_with:
        with pytest.raises(type(ends_with)):
            run()
    else:
        run()
    statistics = outcomes.statistics("m", 100)
    assert (statistics.finished, statistics.cancelled, statistics.failed) == counts
    assert statistics.open_requests == 0
