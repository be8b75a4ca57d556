"""Equal texts are embedded once, whoever asks for them and when."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.models.vector_cache import VectorCache

D = 4
ENTRY_BYTES = 4 * D + 240


def vector_of(text: str) -> np.ndarray:
    return np.full(D, sum(text.encode()), np.float32)


class Model:
    """Embeds when it is let: what it was asked, and a gate."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = False

    async def __call__(self, texts: list[str]) -> np.ndarray:
        self.asked.append(texts)
        await self.gate.wait()
        if self.broken:
            raise RuntimeError("no vectors today")
        return np.stack([vector_of(text) for text in texts])

    @property
    def texts(self) -> list[str]:
        return [text for texts in self.asked for text in texts]


def named(*texts: str) -> dict[bytes, str]:
    return {text.encode(): text for text in texts}


def is_right(found: dict[bytes, np.ndarray], *texts: str) -> bool:
    return found.keys() == named(*texts).keys() and all((found[t.encode()] == vector_of(t)).all() for t in texts)


async def asked(model: Model, calls: int) -> None:
    while len(model.asked) < calls:
        await asyncio.sleep(0)


async def test_no_texts_ask_nothing_of_the_model() -> None:
    model = Model()
    assert await VectorCache(model).vectors({}) == {}
    assert model.asked == []


async def test_what_was_made_of_late_is_not_made_again() -> None:
    model = Model()
    cache = VectorCache(model)
    await cache.vectors(named("a", "b"))
    assert is_right(await cache.vectors(named("b", "c", "a")), "a", "b", "c")
    assert model.asked == [["a", "b"], ["c"]]


async def test_what_another_call_is_making_is_waited_for() -> None:
    model = Model()
    cache = VectorCache(model)
    model.gate.clear()
    first = asyncio.create_task(cache.vectors(named("a", "b")))
    second = asyncio.create_task(cache.vectors(named("b", "c")))
    await asked(model, 2)
    model.gate.set()
    assert is_right(await first, "a", "b")
    assert is_right(await second, "b", "c")
    assert model.asked == [["a", "b"], ["c"]]


async def test_whoever_waits_for_a_call_that_is_cancelled_makes_the_vectors_itself() -> None:
    model = Model()
    cache = VectorCache(model)
    model.gate.clear()
    first = asyncio.create_task(cache.vectors(named("a")))
    await asked(model, 1)
    second = asyncio.create_task(cache.vectors(named("a")))
    await asyncio.sleep(0)
    first.cancel()
    await asked(model, 2)
    model.gate.set()
    assert is_right(await second, "a")
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_cancelling_who_waits_does_not_disturb_who_makes() -> None:
    model = Model()
    cache = VectorCache(model)
    model.gate.clear()
    first = asyncio.create_task(cache.vectors(named("a")))
    await asked(model, 1)
    second = asyncio.create_task(cache.vectors(named("a")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    model.gate.set()
    assert is_right(await first, "a")
    assert model.texts == ["a"]


async def test_a_failure_is_raised_and_not_remembered() -> None:
    model = Model()
    cache = VectorCache(model)
    model.broken = True
    with pytest.raises(RuntimeError, match="no vectors today"):
        await cache.vectors(named("a"))
    model.broken = False
    assert is_right(await cache.vectors(named("a")), "a")


async def test_the_least_recently_used_are_forgotten_when_the_bytes_are_spent() -> None:
    model = Model()
    cache = VectorCache(model, size_bytes=2 * ENTRY_BYTES)
    for text in ("a", "b", "a", "c", "a", "b"):  # "c" sends "b" away
        await cache.vectors(named(text))
    assert model.texts == ["a", "b", "c", "b"]


async def test_more_than_the_memory_holds_is_delivered_all_the_same() -> None:
    cache = VectorCache(Model(), size_bytes=ENTRY_BYTES)
    assert is_right(await cache.vectors(named("a", "b", "c")), "a", "b", "c")


@given(
    calls=st.lists(st.lists(st.sampled_from("abcdef"), max_size=6), max_size=8), cancelled=st.sets(st.integers(0, 7))
)
def test_however_calls_overlap_each_gets_its_vectors_and_none_is_made_twice_at_once(
    calls: list[list[str]], cancelled: set[int]
) -> None:
    async def overlap() -> None:
        model = Model()
        cache = VectorCache(model)
        tasks = []
        for number, texts in enumerate(calls):
            tasks.append(asyncio.create_task(cache.vectors(named(*texts))))
            await asyncio.sleep(0)
            if number - 1 in cancelled:
                tasks[number - 1].cancel()
        for number, (texts, task) in enumerate(zip(calls, tasks, strict=True)):
            await asyncio.wait([task])
            assert task.cancelled() or is_right(task.result(), *texts)
            assert not task.cancelled() or number in cancelled
        if not cancelled:
            assert len(model.texts) == len(set(model.texts))

    asyncio.run(overlap())
