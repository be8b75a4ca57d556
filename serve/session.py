"""A corpus as one object for blocking code: ingest, search, ask, in the style of RunAnywhere's RAG session."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from engine.bridge import LoopThread
from engine.errors import HeadraceError, InvalidInput
from engine.run import Session
from engine.scope import Identity, Priority, Scope
from engine.stream import Stream
from graphs.parts import Parts
from operators.corpus.manifest import open_corpus
from operators.filter_parse import parse_filter
from operators.messages import Deleted, Document, DocumentPage, Listing, Metadata, Question, Written
from operators.models.embedder_files import embedder_identity
from operators.plan_question import normalize_question
from serve.checks import check_kind, check_text, ids_of
from serve.ingest_job import divided, open_or_create
from serve.session_config import NO_LANGUAGE_MODEL, RagConfig, RagRetrievalOptions
from serve.session_documents import RagDocument, as_documents, batches
from serve.session_events import (
    CompletedEvent,
    EmptyCorpus,
    ErrorEvent,
    RagEvent,
    RagResult,
    RagSearchResult,
    RagStatistics,
    TokenEvent,
)
from serve.session_graphs import SessionGraphs
from serve.session_question import AskedQuestion
from serve.settings import Configuration

T = TypeVar("T")

_AS_THE_SESSION = RagRetrievalOptions()

__all__ = [
    "CompletedEvent",
    "EmptyCorpus",
    "ErrorEvent",
    "RagConfig",
    "RagDocument",
    "RagEvent",
    "RagResult",
    "RagRetrievalOptions",
    "RagSearchResult",
    "RagSession",
    "RagStatistics",
    "TokenEvent",
    "headrace_open",
]


def headrace_open(directory: str | Path, config: RagConfig | None = None, *, read_only: bool = False) -> RagSession:
    """Opens the corpus in a folder, and makes it first when there is none; loads the models, which takes seconds.

    What the session changes is on the disk when the call that changes it returns: opening the folder again, in another
    process or after a crash, finds it. A process that has it open finds changes by vectors at once, by words within two
    seconds.

    Args:
        directory: The folder. One session at a time may write to it, any number read.
        config: Models and settings; without it a session retrieves and does not answer.
        read_only: Open beside a session that writes.

    Raises:
        InvalidInput: The folder holds something else; the corpus was made with another embedder; a model is not there
            or has vectors of another dimension than the configuration says; or someone else writes to the corpus.

    Example::

        with headrace_open("my-corpus", RagConfig(generator="extractive")) as session:
            session.ingest([RagDocument("The mill was built by Ida Brandt.", id="mill")])
            print(session.query("Who built the mill?").answer)
    """
    config = RagConfig() if config is None else config
    check_kind("config", config, RagConfig, "a RagConfig")
    model, dimension = embedder_identity(config.embedder)
    if config.embedding_dimension not in {None, dimension}:
        raise InvalidInput(
            f"embedding_dimension is {config.embedding_dimension}, but vectors of {model} have {dimension}: "
            "say so, leave it out, or choose another embedding_model_id"
        )
    root = Path(directory).expanduser()
    made = Configuration(corpus=config.index, embedder=config.embedder, chunks=config.chunks())
    corpus = open_corpus(root) if read_only else open_or_create(root, made)
    return RagSession(Parts(config.profile(corpus), writable=not read_only), config, read_only=read_only)


class RagSession:
    """An open corpus; made by `headrace_open`. Call it from any number of threads at once, then close it.

    Questions do not wait for each other, and a document that is being replaced is found in its old version until the
    new one is ready.
    """

    def __init__(self, parts: Parts, config: RagConfig, *, read_only: bool) -> None:
        self._config = config
        self._read_only = read_only
        self._identity: Identity | None = None
        self._asked: set[Scope] = set()  # of the questions that are on their way
        self._counts: Counter[str] = Counter()  # changed in the loop's thread only
        self._closed = threading.Event()
        self._bridge = LoopThread("headrace-session")
        self._engine = Session()
        try:
            self._graphs = self._bridge.wait(SessionGraphs.start(self._engine, parts, config))
        except BaseException:
            self.close()
            raise

    def acting_for(self, identity: Identity) -> RagSession:
        """This session as one person uses it, who sees what is theirs or their groups', and changes what is theirs.

        Models and corpus are the same; closing the one closes the other.
        """
        theirs = copy.copy(self)
        theirs._identity, theirs._asked = identity, set()
        return theirs

    # What is in the corpus

    def ingest(self, documents: RagDocument | str | Iterable[RagDocument | str]) -> list[Written]:
        """Adds documents, or replaces those whose id is there; they are on the disk and found when this returns.

        A document that is there with the same content is left alone and costs no embedding, nor do chunks that any
        document of the corpus has already. A replaced document answers in its old version until the new one is ready.
        A new version has the metadata and collections that it comes with: what was set later on the old one goes with
        that, and stays as long as the document is ingested unchanged. A chunk that was changed does not stay: ingesting
        its document replaces it, with the same content, too.

        Texts without id that differ in white space only are one document, of which the last one stands: given in one
        call only that is written, given one after the other it replaces the one before.

        Args:
            documents: Documents, or their texts.

        Returns:
            What became of each document, once each, in their order.

        Raises:
            InvalidInput: Two documents of one id differ, or two without id in more than white space, and nothing was
                written; or a document cannot be stored, or the session is read-only. When one cannot be stored, every
                other document is there nevertheless.
            AccessDenied: A person may not write a document.
        """
        self._refuse_when_read_only()
        return self._wait(self._ingest(list(batches(as_documents(documents)))))

    async def _ingest(self, several: list[list[Document]]) -> list[Written]:
        async def write(documents: list[Document]) -> list[Written]:
            return await self._graphs.ingest.within(self._scope(priority=Priority.BATCH))(documents)

        written: list[Written] = []
        failures: list[HeadraceError] = []
        for batch in several:
            done, refused = await divided(write, batch)
            written += done
            failures += [error for _, error in refused]
        if failures:
            raise failures[0]
        return written

    def delete(self, ids: str | Iterable[str]) -> Deleted:
        """Deletes documents, durably and at once; ids that are not there are told in `missing`.

        Raises:
            InvalidInput: No id is given, one is no text, or the session is read-only.
            AccessDenied: A document belongs to someone else.
        """
        self._refuse_when_read_only()
        return self._wait(self._graphs.delete.within(self._scope())(ids_of(ids)))

    def delete_where(self, filters: dict[str, Any]) -> Deleted:
        """Deletes the documents that pass a filter, durably and at once; for one person, those that are theirs.

        Raises:
            InvalidInput: The filter is malformed or lets everything through, or the session is read-only.
        """
        self._refuse_when_read_only()
        return self._wait(self._graphs.delete_where.within(self._scope())(filters))

    def change_metadata(self, document_id: str, metadata: Metadata, *, replace: bool = False) -> None:
        """Puts keys beside a document's metadata, or in their place; nothing is embedded, filters see it at once.

        Raises:
            InvalidInput: There is no such document, the metadata cannot be stored, or the session is read-only.
            AccessDenied: The document belongs to someone else.
        """
        self._refuse_when_read_only()
        check_text("document_id", document_id)
        check_kind("metadata", metadata, Mapping, "a mapping")
        change = self._graphs.change_metadata.within(self._scope())
        if not self._wait(change(document_id, dict(metadata), replace)):
            raise InvalidInput(f"there is no document {document_id!r}; ingest it first")

    def change_chunk(self, chunk_id: str, text: str) -> None:
        """Gives a chunk another text, which is embedded, and found at once; the document's own text stays as it is.

        Searches tell by `edited` that the chunk is not what stands in the document. Ingesting the document again undoes
        it.

        Args:
            chunk_id: As searches give it.
            text: The new text, in one piece however long it is.

        Raises:
            InvalidInput: There is no such chunk, the text is blank, the document was replaced meanwhile, or the session
                is read-only.
            AccessDenied: The document belongs to someone else.
        """
        self._refuse_when_read_only()
        check_text("chunk_id", chunk_id)
        check_text("text", text, nul=True)
        if not self._wait(self._graphs.change_chunk.within(self._scope())(chunk_id, text)):
            raise InvalidInput(f"there is no chunk {chunk_id!r}; searches give the ids of those that there are")

    def documents(
        self, *, filters: dict[str, Any] | None = None, scope_prefix: str = "", offset: int = 0, limit: int = 100
    ) -> DocumentPage:
        """A page of documents without their texts, newest first, then by id; and how many there are on all pages.

        Raises:
            InvalidInput: The filter is malformed, or another value is of another type or out of its range.
        """
        listing = Listing(filters=parse_filter(filters or {}), scope_prefix=scope_prefix, offset=offset, limit=limit)
        return self._wait(self._graphs.documents.within(self._scope())(listing))

    def stats(self) -> RagStatistics:
        """What the corpus holds, and what this session was asked.

        Raises:
            AccessDenied: The session acts for one person, who may not count what is others'.
        """
        shards = self._wait(self._graphs.stats.within(self._scope())())
        return RagStatistics(
            indexed_documents=sum(s.documents for s in shards),
            indexed_chunks=sum(s.chunks for s in shards),
            total_tokens=sum(s.tokens for s in shards),
            size_bytes=sum(sum(s.size_bytes.values()) for s in shards),
            last_updated=max(s.updated for s in shards) or None,
            searches=self._counts["searches"],
            queries=self._counts["queries"],
        )

    def _refuse_when_read_only(self) -> None:
        if self._read_only:
            raise InvalidInput("this session is for reading; open the folder without read_only to change what is there")

    # Questions

    def search(self, query: str, options: RagRetrievalOptions = _AS_THE_SESSION) -> list[RagSearchResult]:
        """The passages that answer a question, best first, out of the whole corpus.

        Raises:
            InvalidInput: The question is empty, or an option cannot be met.
            EmptyCorpus: There is no document yet.
            Incomplete: A shard died or was late; carries which, and the share of the documents that the others hold.
            RequestEnded: It was cancelled, or its time was spent.
        """
        return self._wait(self._search(self._asked_question(query, options)))

    async def _search(self, asked: AskedQuestion) -> list[RagSearchResult]:
        with self._on_its_way(asked.scope, "searches"):
            found = await asked.whole()
        return list(self._graphs.results(found.passages))

    def query(self, query: str, options: RagRetrievalOptions = _AS_THE_SESSION) -> RagResult:
        """The answer to a question with its sources; raises as `search`, and what the model raises.

        Where nothing is found, the answer says so and no model is called. When a shard died or was late, the answer is
        out of the others, and `partial` says what is missing.

        Raises:
            InvalidInput: As `search`; or the session only retrieves.
            Incomplete: The other shards hold less than three quarters of the documents (RETRIEVAL in graphs/parts.py).
        """
        return self._wait(self._query(self._answerable(query, options)))

    async def _query(self, asked: AskedQuestion) -> RagResult:
        with self._on_its_way(asked.scope, "queries"):
            return await asked.result()

    def query_stream(self, query: str, options: RagRetrievalOptions = _AS_THE_SESSION) -> Stream[RagEvent]:
        """The answer as it comes: token events, then exactly one completed or error event.

        The completed event has what `query` gives. Iterate with `for`; leaving the loop, or `close()`, stops the model
        at once. A question that is wrong by itself raises here; what fails later is the error event.

        Raises:
            InvalidInput: The question is empty, or the session only retrieves.
        """
        return Stream(self._stream(self._answerable(query, options)), bridge=self._bridge)

    async def _stream(self, asked: AskedQuestion) -> AsyncIterator[RagEvent]:
        with self._on_its_way(asked.scope, "queries"):
            async with aclosing(asked.events()) as events:
                async for event in events:
                    yield event

    def cancel(self) -> None:
        """Cancels every question that is on its way, from any thread; each ends at its next token or step.

        Later questions are not touched: with nothing on its way this does nothing.
        """
        self._wait(self._cancel())

    async def _cancel(self) -> None:
        for scope in self._asked:
            scope.cancel()

    def _answerable(self, query: str, options: RagRetrievalOptions) -> AskedQuestion:
        if self._config.answering is None:
            raise InvalidInput(
                f"no language model answers in this session, it only retrieves; {NO_LANGUAGE_MODEL}; or with "
                'generator="extractive", which answers with sentences of the sources'
            )
        return self._asked_question(query, options)

    def _asked_question(self, query: str, options: RagRetrievalOptions) -> AskedQuestion:
        check_kind("options", options, RagRetrievalOptions, "RagRetrievalOptions")
        config = self._config
        return AskedQuestion(
            self._graphs,
            Question(normalize_question(query), config.settings(options)),
            variants=config.variants(options),
            context_tokens=config.max_context_tokens,
            scope=self._scope(timeout_s=options.timeout_s),
        )

    @contextmanager
    def _on_its_way(self, scope: Scope, counted_as: str) -> Iterator[None]:
        self._asked.add(scope)
        self._counts[counted_as] += 1
        try:
            yield
        finally:
            self._asked.discard(scope)

    def _scope(self, *, timeout_s: float | None = None, priority: Priority = Priority.INTERACTIVE) -> Scope:
        return Scope(timeout_s=timeout_s, priority=priority, identity=self._identity)

    # Its end

    def close(self) -> None:
        """Ends what is on its way, saves the indexes and lets go of everything. Repeating it is harmless."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            self._bridge.wait(self._engine.aclose())
        finally:
            self._bridge.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._closed.is_set():
            coroutine.close()
            raise InvalidInput("this session is closed; open another one with headrace_open")
        return self._bridge.wait(coroutine)
