"""What every language model must do, whoever runs the weights: a test class that each backend's tests inherit."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from engine.errors import InvalidInput
from operators.messages import ChatMessage, Finish, Prompt, Text
from operators.models.language import LanguageModel, ReplyRejected

STORY = "Tell me a story."
VERDICT = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}
CANCELS = 50


def a_prompt(text: str = STORY, **changes) -> Prompt:
    messages = (ChatMessage("user", text),)
    return Prompt(**{"question": text, "messages": messages, "sources": (), "max_tokens": 12} | changes)


async def reply_of(model: LanguageModel, prompt: Prompt) -> tuple[str, Finish]:
    *texts, finish = [delta async for delta in model.generate(prompt)]
    assert all(isinstance(delta, Text) and delta.text for delta in texts), texts
    assert isinstance(finish, Finish)
    return "".join(delta.text for delta in texts), finish


async def idle(model: LanguageModel) -> None:
    """Return when the model works for nobody; a leak becomes a timeout."""
    async with asyncio.timeout(60):
        while model.statistics().open_requests:
            await asyncio.sleep(0.002)


@pytest.mark.asyncio(loop_scope="module")
class LanguageModelSuite:
    """Inherit it, and define a module-scoped fixture `model`."""

    async def test_a_reply_is_streamed_in_pieces_and_counted_by_the_model(self, model):
        prompt = a_prompt()
        deltas = [delta async for delta in model.generate(prompt)]
        assert len(deltas) > 3
        finish = deltas[-1]
        assert finish.reason == "length"
        assert finish.usage.completion_tokens == prompt.max_tokens
        assert finish.usage.prompt_tokens == await model.count_prompt(list(prompt.messages))
        assert finish.model == model.statistics().model

    async def test_the_deltas_are_no_running_total(self, model):
        text, finish = await reply_of(model, a_prompt())
        # A greedy model says the same again; were deltas cumulative, the text would be counted several times over.
        assert (await model.count_tokens([text]))[0] <= finish.usage.completion_tokens + 1
        assert (await reply_of(model, a_prompt()))[0] == text

    @pytest.mark.parametrize("max_tokens", [1, 2, 3, 4])
    async def test_a_cut_reply_ends_with_a_whole_character(self, model, max_tokens):
        schema = {"type": "string", "pattern": "^[😀-🙏]{20}$"}  # several tokens a character
        text, pieces = "", model.generate(a_prompt("Smile!", max_tokens=max_tokens, answer_schema=schema))
        with pytest.raises(ReplyRejected, match=f"cut after {max_tokens} tokens"):
            async for delta in pieces:
                text += delta.text
        assert "\N{REPLACEMENT CHARACTER}" not in text
        assert text.encode().decode() == text

    async def test_many_replies_at_once_all_end(self, model):
        prompts = [a_prompt(f"Count from {n}.", max_tokens=4) for n in range(9)]
        finishes = [finish for _, finish in await asyncio.gather(*(reply_of(model, p) for p in prompts))]
        assert [finish.usage.completion_tokens for finish in finishes] == [4] * 9
        await idle(model)

    async def test_a_reply_is_held_to_its_schema(self, model):
        text, finish = await reply_of(model, a_prompt("Is it dark?", max_tokens=60, answer_schema=VERDICT))
        assert finish.reason == "stop"
        assert json.loads(text)["answer"] in {"yes", "no"}

    async def test_a_reply_that_is_cut_inside_its_json_is_rejected_after_its_deltas(self, model):
        schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 300}}, "required": ["a"]}
        text = ""
        with pytest.raises(ReplyRejected, match="raise max_tokens") as caught:
            async for delta in model.generate(a_prompt(max_tokens=6, answer_schema=schema)):
                text += delta.text
        assert caught.value.text == text
        assert caught.value.usage.completion_tokens == 6
        await idle(model)

    async def test_a_prompt_longer_than_the_window_is_refused_with_both_numbers(self, model):
        long = a_prompt("fox " * (model.context_tokens + 10))
        tokens = await model.count_prompt(list(long.messages))
        assert tokens > model.context_tokens
        with pytest.raises(InvalidInput, match=rf"{tokens}.*{model.context_tokens}"):
            await reply_of(model, long)
        await idle(model)

    async def test_tokens_are_counted_by_the_models_tokenizer(self, model):
        assert await model.count_tokens([]) == []
        words, chinese, empty = await model.count_tokens(["The quick brown fox", "敏捷的狐狸", ""])
        assert words == 4
        assert chinese > 4
        assert empty == 0
        many = await model.count_tokens(["fox", "The quick brown fox"] * 20)
        assert many == [(await model.count_tokens(["fox"]))[0], words] * 20

    async def test_fifty_replies_cancelled_at_random_moments_leave_nothing(self, model):
        before, moment = model.statistics(), random.Random(7)
        others = asyncio.all_tasks()
        for n in range(CANCELS):
            prompt = a_prompt(f"{STORY} {n}", max_tokens=200)
            if n % 2:
                await leave_after_deltas(model, prompt, moment.randrange(1, 3))
            else:
                await cancel_after_seconds(model, prompt, moment.random() * 0.1)
        await idle(model)
        after = model.statistics()
        assert after.cancelled - before.cancelled == CANCELS
        assert (after.finished, after.failed) == (before.finished, before.failed)
        assert asyncio.all_tasks() <= others
        assert (await reply_of(model, a_prompt(max_tokens=3)))[1].reason == "length"

    async def test_a_reader_who_leaves_does_not_disturb_the_others(self, model):
        kept = asyncio.create_task(reply_of(model, a_prompt("One of two.", max_tokens=20)))
        for _ in range(3):
            await leave_after_deltas(model, a_prompt("Two of two."), 1)
        assert (await kept)[1].usage.completion_tokens == 20
        await idle(model)


async def leave_after_deltas(model: LanguageModel, prompt: Prompt, deltas: int) -> None:
    reply = model.generate(prompt)
    for _ in range(deltas):
        await anext(reply)
    await reply.aclose()


async def cancel_after_seconds(model: LanguageModel, prompt: Prompt, seconds: float) -> None:
    task = asyncio.create_task(reply_of(model, prompt))
    await asyncio.sleep(seconds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
