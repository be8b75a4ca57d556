from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.clock import VirtualClock
from engine.errors import Cancelled, Incomplete, InvalidInput
from engine.graph import graph
from engine.run import Session
from engine.scope import Scope
from engine.step import step
from engine.stream import Stream
from operators.messages import (
    Answer,
    Citation,
    DocumentPage,
    Event,
    Listing,
    Partial,
    Passage,
    Plan,
    Question,
    Results,
    Settings,
    Text,
    Usage,
)
from operators.models.embedder import EmbedderConfig, token_measure
from operators.multi_query import Variants
from operators.plan_question import plan_question
from serve.session_events import CompletedEvent, EmptyCorpus, TokenEvent
from serve.session_graphs import SessionGraphs
from serve.session_question import FUSED_DEPTH, AskedQuestion

ASKED = "Who built the mill?"
TEXTS = {"mill": "Ida Brandt built the mill in 1924.", "weir": "The weir is old.", "gate": "The gate opens at dawn."}
FINDS = {ASKED: ["weir", "mill"], "Whose work is the mill?": ["mill", "gate"], "nothing": [], "lost": []}
LACKS = {"Whose work is the mill?": Partial((1, 3), 0.75), "lost": Partial((2,), 0.9)}


def passage(name):
    text = TEXTS[name]
    return Passage(chunk_id=f"{name}#0", document_id=name, title="", text=text, start=0, end=len(text), score=1.0)


def searching(clock, asked):
    """A search that takes 2 seconds."""

    @step
    async def find(question: Question) -> Results:
        asked.append(question)
        if question.text == "broken":
            raise InvalidInput("the vector is broken")
        if question.text == "gone":
            raise Cancelled("the caller went away")
        await clock.sleep(2)
        return Results(plan_question(question), tuple(map(passage, FINDS[question.text])), LACKS.get(question.text))

    @graph
    def search(question: Question) -> Results:
        return find(question)

    return search


def rewording(clock, wordings):
    """A rewording that takes 1 second."""

    @step
    async def reword(question: str, count: int) -> Variants:
        await clock.sleep(1)
        return Variants(tuple(wordings[:count]), Usage(100, 10))

    @graph
    def variants(question: str, count: int) -> Variants:
        return reword(question, count)

    return variants


def answering(clock):
    """An answer that takes 3 seconds to its first token and 4 to the second."""

    @step
    async def speak(plan: Plan, found: Results) -> AsyncIterator[Event]:
        await clock.sleep(3)
        yield Text("Ida ")
        await clock.sleep(4)
        yield Text("Brandt.")
        yield Citation(0, 11, 1, "mill#0", "mill", 1.0)
        yield Answer(
            text="Ida Brandt.",
            citations=(),
            unsupported=(),
            sources=found.passages,
            finish_reason="stop" if found.passages else "no_sources",
            usage=Usage(50, 5),
            model="m",
        )

    @graph
    def answer(plan: Plan, found: Results) -> Stream[Event]:
        return speak(plan, found)

    return answer


def listing(documents):
    """A list of so many documents."""

    @step
    def listed(listing: Listing) -> DocumentPage:
        return DocumentPage([], documents)

    @graph
    def documents_of(listing: Listing) -> DocumentPage:
        return listed(listing)

    return documents_of


async def asked_of(clock, *, text=ASKED, wordings=(), documents=1, limit=5, context_tokens=100):
    """A question on its way through small graphs, and the questions that its search gets to see."""
    engine, asked = Session(), []
    graphs = SessionGraphs(
        search=await engine.start(searching(clock, asked)),
        answer=await engine.start(answering(clock)),
        variants=await engine.start(rewording(clock, wordings)),
        documents=await engine.start(listing(documents)),
        ingest=None,
        delete=None,
        delete_where=None,
        change_metadata=None,
        change_chunk=None,
        stats=None,
        measure=token_measure(EmbedderConfig()),
    )
    question = AskedQuestion(
        graphs,
        Question(text, Settings(limit=limit)),
        variants=len(wordings),
        context_tokens=context_tokens,
        scope=Scope("q-1", clock=clock),
    )
    return question, asked


async def result_of(clock, question):
    return await finished(clock, question.result())


async def finished(clock, work):
    task = asyncio.create_task(work)
    while not task.done():
        await clock.advance(1)
    return await task


async def test_the_time_to_find_and_the_time_to_answer_are_measured_apart():
    clock = VirtualClock()
    question, _ = await asked_of(clock)
    result = await result_of(clock, question)
    assert (result.retrieval_time_ms, result.generation_time_ms) == (2_000, 7_000)
    assert result.usage == Usage(50, 5)
    assert result.request_id == "q-1"


async def test_what_the_caller_does_between_two_events_is_not_counted():
    clock = VirtualClock()
    question, _ = await asked_of(clock)
    events = question.events()
    seen = []
    while not seen or isinstance(seen[-1], TokenEvent):
        task = asyncio.create_task(anext(events))
        while not task.done():
            await clock.advance(1)
        seen.append(await task)
        await clock.advance(60)  # the caller thinks
    assert [event.token for event in seen[:-1]] == ["Ida ", "Brandt."]
    assert isinstance(seen[-1], CompletedEvent)
    assert seen[-1].result.generation_time_ms == 7_000


async def test_all_wordings_are_searched_for_at_once_and_fused():
    clock = VirtualClock()
    question, asked = await asked_of(clock, wordings=["Whose work is the mill?"])
    result = await result_of(clock, question)
    assert [source.document_id for source in result.sources] == ["mill", "weir", "gate"]
    assert result.queries == (ASKED, "Whose work is the mill?")
    assert {q.settings.limit for q in asked} == {FUSED_DEPTH}
    assert result.retrieval_time_ms == 3_000  # 1 to reword, 2 for both searches
    assert result.usage == Usage(150, 15)


async def test_the_limit_cuts_what_was_fused():
    clock = VirtualClock()
    question, _ = await asked_of(clock, wordings=["Whose work is the mill?"], limit=1)
    assert [source.document_id for source in (await result_of(clock, question)).sources] == ["mill"]


async def test_a_wording_that_cannot_be_searched_for_is_left_out():
    clock = VirtualClock()
    question, _ = await asked_of(clock, wordings=["broken", "Whose work is the mill?"])
    assert [s.document_id for s in (await result_of(clock, question)).sources] == ["mill", "weir", "gate"]


async def test_the_question_itself_must_be_searchable():
    clock = VirtualClock()
    question, _ = await asked_of(clock, text="broken", wordings=["Whose work is the mill?"])
    with pytest.raises(InvalidInput, match="the vector is broken"):
        await result_of(clock, question)


async def test_a_cancelled_wording_ends_the_question():
    clock = VirtualClock()
    question, _ = await asked_of(clock, wordings=["gone"])
    with pytest.raises(Cancelled):
        await result_of(clock, question)


async def test_a_passage_that_the_context_cannot_hold_is_left_out_and_the_next_is_tried():
    clock = VirtualClock()
    question, _ = await asked_of(clock, text="Whose work is the mill?", context_tokens=6)  # "Ida ..." has 8
    result = await result_of(clock, question)
    assert [source.document_id for source in result.sources] == ["gate"]
    assert result.context_used == TEXTS["gate"]


async def test_without_a_passage_there_is_no_token():
    clock = VirtualClock()
    question, _ = await asked_of(clock, text="nothing")
    task = asyncio.create_task(_all(question.events()))
    while not task.done():
        await clock.advance(1)
    [only] = await task
    assert isinstance(only, CompletedEvent)
    assert only.result.finish_reason == "no_sources"


async def test_without_a_document_it_is_an_error():
    clock = VirtualClock()
    question, _ = await asked_of(clock, text="nothing", documents=0)
    with pytest.raises(EmptyCorpus):
        await result_of(clock, question)


async def test_an_answer_from_a_part_of_the_corpus_says_so():
    clock = VirtualClock()
    question, _ = await asked_of(clock, text="Whose work is the mill?")
    assert (await result_of(clock, question)).partial == Partial((1, 3), 0.75)
    question, _ = await asked_of(clock, wordings=["Whose work is the mill?"])
    *_, completed = await finished(clock, _all(question.events()))
    assert completed.result.partial == Partial((1, 3), 0.75)
    question, _ = await asked_of(clock)
    assert (await result_of(clock, question)).partial is None


async def test_passages_alone_are_of_the_whole_corpus_or_an_error():
    clock = VirtualClock()
    question, _ = await asked_of(clock, text="Whose work is the mill?")
    with pytest.raises(Incomplete, match="shards 1, 3 did not answer, and the others hold 75%") as told:
        await finished(clock, question.whole())
    assert (told.value.shards, told.value.coverage, told.value.request_id) == ((1, 3), 0.75, "q-1")
    question, _ = await asked_of(clock)
    assert [p.document_id for p in (await finished(clock, question.whole())).passages] == ["weir", "mill"]


async def test_where_a_shard_is_missing_the_corpus_is_not_called_empty():
    clock = VirtualClock()
    question, _ = await asked_of(clock, text="lost", documents=0)
    assert (await result_of(clock, question)).partial == Partial((2,), 0.9)


async def _all(events):
    return [event async for event in events]
