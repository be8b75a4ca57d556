"""One question of a session on its way: its other wordings, what is found for them all, the answer as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from engine.errors import HeadraceError, Incomplete, RequestEnded
from engine.scope import Scope
from operators.fuse_results import fuse_results
from operators.messages import Answer, Listing, Partial, Question, Results, Text, Usage
from operators.multi_query import Variants
from serve.session_events import CompletedEvent, EmptyCorpus, ErrorEvent, RagEvent, RagResult, TokenEvent
from serve.session_graphs import SessionGraphs

FUSED_DEPTH = 20  # passages that each wording gives at least: fusion of shorter lists knows little


class AskedQuestion:
    """One question; use it once.

    Args:
        graphs: What it goes through.
        question: Its text and settings.
        variants: Other wordings to ask the language model for; 0 asks for none.
        context_tokens: Most tokens of the passages that an answer draws on.
        scope: Its deadline, cancellation and asking person.
    """

    def __init__(
        self, graphs: SessionGraphs, question: Question, *, variants: int, context_tokens: int, scope: Scope
    ) -> None:
        self.scope = scope
        self._graphs = graphs
        self._question = question
        self._count = variants
        self._context_tokens = context_tokens
        self._variants = Variants((), Usage(0, 0))
        self._retrieval_s = 0.0

    async def retrieve(self) -> Results:
        """The passages that are found for the question and its other wordings, best first.

        Where a shard is missing, `partial` says so, and the corpus counts as not empty.

        Raises:
            EmptyCorpus: There is no document to find anything in.
            HeadraceError: The question could not be searched for. That a variant could not be is no error.
        """
        began = self.scope.clock.now()
        if self._count and self._graphs.variants is not None:
            self._variants = await self._graphs.variants.within(self.scope)(self._question.text, self._count)
        found = await self._search_all()
        if not found.passages and found.partial is None and not await self._documents():
            raise EmptyCorpus("there is no document to search in; ingest one first", request_id=self.scope.id)
        self.scope.check()
        self._retrieval_s = self.scope.clock.now() - began
        return found

    async def whole(self) -> Results:
        """As `retrieve`, from all of the corpus.

        Raises:
            Incomplete: A shard did not answer.
            HeadraceError: As `retrieve`.
        """
        found = await self.retrieve()
        if found.partial is not None:
            raise _incomplete(found.partial, self.scope.id)
        return found

    async def _documents(self) -> int:
        return (await self._graphs.documents.within(self.scope)(Listing(limit=1))).total

    async def _search_all(self) -> Results:
        search, settings = self._graphs.search.within(self.scope), self._question.settings
        if not self._variants.texts:
            return await search(self._question)
        deep = msgspec.structs.replace(settings, limit=max(settings.limit, FUSED_DEPTH))
        wordings = (self._question.text, *self._variants.texts)
        searches = [search(Question(text, deep)) for text in wordings]
        first, *others = await asyncio.gather(*searches, return_exceptions=True)
        if isinstance(first, BaseException):
            raise first
        found = [first]
        for other in others:
            if isinstance(other, Results):
                found.append(other)
            elif isinstance(other, RequestEnded) or not isinstance(other, HeadraceError):
                raise other
        return fuse_results(found, limit=settings.limit)

    async def events(self) -> AsyncGenerator[RagEvent, None]:
        """The answer's tokens, then one completed or error event; without a passage only the one.

        Closing this stops the model.
        """
        try:
            async with aclosing(self.answer()) as answer:
                async for event in answer:
                    yield event
        except HeadraceError as error:
            yield ErrorEvent.of(error, self.scope.id)

    async def result(self) -> RagResult:
        """The whole answer; raises as `answer`."""
        *_, completed = [event async for event in self.answer()]
        assert isinstance(completed, CompletedEvent)
        return completed.result

    async def answer(self) -> AsyncGenerator[TokenEvent | CompletedEvent, None]:
        """The answer's tokens, then the completed event.

        Raises:
            HeadraceError: What ended the answer before its end.
        """
        found = self._within_context(await self.retrieve())
        answer, now = self._graphs.answer, self.scope.clock.now
        assert answer is not None  # the session refuses questions that it cannot answer
        began = now()
        async with aclosing(await answer.within(self.scope)(found.plan, found)) as events:
            waited = now() - began
            last: Answer | None = None
            while last is None:
                began = now()
                event = await anext(events)
                waited += now() - began
                if isinstance(event, Answer):
                    last = event
                elif isinstance(event, Text) and found.passages:
                    yield TokenEvent(token=event.text)
        yield CompletedEvent(result=self._result(last, found.partial, waited))

    def _within_context(self, found: Results) -> Results:
        """The passages, each whole, that the context holds."""
        kept, left = [], self._context_tokens
        for passage in found.passages:
            tokens = self._graphs.tokens(passage)
            if tokens <= left:
                kept.append(passage)
                left -= tokens
        return msgspec.structs.replace(found, passages=tuple(kept))

    def _result(self, answer: Answer, partial: Partial | None, generation_s: float) -> RagResult:
        spent = self._variants.usage
        return RagResult(
            answer=answer.text,
            sources=self._graphs.results(answer.sources),
            citations=answer.citations,
            unsupported=answer.unsupported,
            context_used="\n\n".join(source.text for source in answer.sources),
            queries=(self._question.text, *self._variants.texts),
            finish_reason=answer.finish_reason,
            model=answer.model,
            usage=Usage(
                spent.prompt_tokens + answer.usage.prompt_tokens,
                spent.completion_tokens + answer.usage.completion_tokens,
            ),
            retrieval_time_ms=1000 * self._retrieval_s,
            generation_time_ms=1000 * generation_s,
            request_id=self.scope.id,
            partial=partial,
        )


def _incomplete(partial: Partial, request_id: str) -> Incomplete:
    error = Incomplete(
        f"shards {', '.join(map(str, partial.missing))} did not answer, and the others hold {partial.coverage:.0%} of "
        "the documents: ask again, and if it stays so open the session anew; query answers from what there is and says "
        "in partial what is missing",
        shards=partial.missing,
        coverage=partial.coverage,
    )
    error.request_id = request_id
    return error
