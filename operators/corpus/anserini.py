"""Lucene indexes that pyserini or Anserini made, as a lexical leg."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from engine.errors import InvalidInput
from engine.scope import current_scope
from operators.corpus import jvm
from operators.filter_tree import EVERYTHING
from operators.messages import Passage, Plan, Question, Ranking
from operators.plan_question import plan_question

_Result = TypeVar("_Result")
_MAX_CLAUSES = 16_384  # terms of a question; the planner lets through fewer


class AnseriniIndex:
    """The state of a stage: a Lucene index with Anserini's fields `id`, `contents` and `raw`, opened for reading.

    It ranks as pyserini's LuceneSearcher does. Whoever is somebody in particular (an identity in the scope) finds
    nothing: documents there have no owner and are in no group. Built by `open`, safe for concurrent calls; give it a
    process of its own, as it starts a Java machine.
    """

    def __init__(self, index: Any, words: Callable[[str], Any], *, threads: int) -> None:
        self._index = index
        self._words = words
        self._reading = ThreadPoolExecutor(threads, thread_name_prefix="anserini")

    @classmethod
    def open(
        cls, path: str, *, k1: float = 0.9, b: float = 0.4, analyzer: str = "english", threads: int = 2
    ) -> AnseriniIndex:
        """Opens an index.

        Args:
            path: Its folder.
            k1: BM25's; the defaults are Anserini's own.
            b: BM25's.
            analyzer: That the index was made with: "english", or the code of a language that Anserini knows ("zh").
            threads: Searches served at once.

        Raises:
            InvalidInput: There is no index, a newer or far older Lucene made it, it lacks what is needed, or an
                argument is out of its range.
        """
        if not (0 <= k1 <= 10 and 0 <= b <= 1):
            raise InvalidInput(f"k1 is {k1} and b is {b}; expected 0 to 10 and 0 to 1")
        java = jvm.start().JClass
        java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_MAX_CLAUSES)
        similarity = java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b)
        words = partial(
            java("io.anserini.search.query.BagOfWordsQueryGenerator")().buildQuery,
            "contents",
            _analyzer(java, analyzer),
        )
        index = java("headrace.Foreign")(_reader(java, path), similarity)
        try:
            _check_fields(index, path)
        except InvalidInput:
            index.close()
            raise
        return cls(index, words, threads=threads)

    async def lexical(self, plan: Plan) -> Ranking:
        """The documents that BM25 ranks first: score descending, then id ascending. Keys are Lucene's numbers.

        Raises:
            InvalidInput: The plan asks for what such an index cannot do.
        """
        refuse_unless_lexical(plan)
        leg = plan.leg("lexical")
        limit = leg.limit if leg and current_scope().identity is None else 0
        if not limit:
            return _ranking(np.empty(0, np.int64), np.empty(0, np.float32), limit)
        hits = await self._read(lambda: self._index.search(self._words(plan.question), plan.scope_prefix, limit))
        return _ranking(np.array(hits.documents, np.int64), np.array(hits.scores, np.float32), limit)

    async def fetch(self, ranking: Ranking) -> list[Passage]:
        """The documents of a ranking, in its order; a document is one chunk, with its own id."""
        if current_scope().identity is not None:
            return []
        stored = await self._read(lambda: self._index.texts(ranking.keys.tolist()))
        return [
            _passage(*(None if text is None else str(text) for text in texts), score=float(score), rank=rank)
            for rank, (texts, score) in enumerate(zip(stored, ranking.scores, strict=True), 1)
        ]

    async def _read(self, work: Callable[[], _Result]) -> _Result:
        scope = current_scope()

        def run() -> _Result:
            scope.check()
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._reading, run)

    async def aclose(self) -> None:
        """Closes the index; calls in progress end first."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._reading.shutdown()
        self._index.close()


def plan_for_anserini(question: Question) -> Plan:
    """The plan of a question to such an index: as plan_question's, with the lexical leg alone.

    Raises:
        InvalidInput: As plan_question, or the question asks for what such an index cannot do.
    """
    plan = plan_question(question)
    refuse_unless_lexical(plan)
    return msgspec.structs.replace(
        plan, strategy="lexical", legs=tuple(leg for leg in plan.legs if leg.name == "lexical")
    )


def refuse_unless_lexical(plan: Plan) -> None:
    """Refuses a plan that asks for more than an index without vectors and metadata can do.

    Raises:
        InvalidInput: It has a filter or a threshold on the semantic score, or leaves the lexical leg out.
    """
    if plan.leg("lexical") is None:
        raise InvalidInput("an index of Anserini's has no vectors: leave the lexical leg in")
    if plan.filters != EVERYTHING:
        raise InvalidInput("an index of Anserini's has no metadata to filter by; scope_prefix works, on its ids")
    if plan.score_threshold is not None:
        raise InvalidInput("an index of Anserini's has no vectors, so no semantic scores; leave score_threshold out")


def _reader(java: Any, path: str) -> Any:
    reader, places = java("org.apache.lucene.index.DirectoryReader"), java("java.nio.file.Paths")
    directory = java("org.apache.lucene.store.FSDirectory")
    if not Path(path).is_dir():
        raise InvalidInput(f"{path} is no folder; expected one with an index that pyserini or Anserini made")
    try:
        return reader.open(directory.open(places.get(path)))
    except java("org.apache.lucene.index.IndexNotFoundException") as error:
        raise InvalidInput(f"{path} holds no Lucene index; index a collection with pyserini first") from error
    except (
        java("org.apache.lucene.index.IndexFormatTooNewException"),
        java("org.apache.lucene.index.IndexFormatTooOldException"),
        java("java.lang.IllegalArgumentException"),  # an unknown codec
    ) as error:
        version = java("org.apache.lucene.util.Version").LATEST
        raise InvalidInput(
            f"{path} was made by a Lucene that this one ({version}) cannot read: index again with the installed "
            f"pyserini, or install the pyserini that made it ({error.getMessage()})"
        ) from error
    except java("java.io.IOException") as error:
        raise InvalidInput(f"{path} cannot be read: {error.getMessage()}; index again") from error


def _analyzer(java: Any, name: str) -> Any:
    if name == "english":
        return java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    languages = java("io.anserini.analysis.AnalyzerMap")
    known = sorted(map(str, languages.analyzerMap.keySet()))
    if name not in known:
        raise InvalidInput(f"analyzer is {name!r}; expected one of english, {', '.join(known)}")
    return languages.getLanguageSpecificAnalyzer(name)


def _check_fields(index: Any, path: str) -> None:
    missing = [field for field in ("id", "contents") if not index.isIndexed(field)]
    if index.size() and missing:
        raise InvalidInput(f"{path} has no field {missing[0]!r}; expected an index that pyserini or Anserini made")
    if index.size() and index.texts([0])[0][1] is None and index.texts([0])[0][2] is None:
        raise InvalidInput(f"{path} stores no texts, only what ranks them; index again with --storeRaw")


def _ranking(documents: np.ndarray, scores: np.ndarray, limit: int) -> Ranking:
    return Ranking("lexical", documents, scores, np.zeros(len(documents), np.int32), limit=limit)


def _passage(docid: str | None, contents: str | None, raw: str | None, *, score: float, rank: int) -> Passage:
    fields = _fields(raw)
    text = contents if contents is not None else fields.pop("contents", raw)
    title = fields.pop("title", "")
    others = {name: value for name, value in fields.items() if name not in ("id", "contents", "vector")}
    return Passage(
        chunk_id=docid or "",
        document_id=docid or "",
        title=title if isinstance(title, str) else "",
        text=text,
        start=0,
        end=len(text),
        score=score,
        ranks={"lexical": rank},
        metadata=others,
    )


def _fields(raw: str | None) -> dict[str, Any]:
    """The fields of a document that was one JSON object; Anserini reads other formats, too."""
    try:
        fields = msgspec.json.decode(raw or "{}")
    except msgspec.DecodeError:
        return {}
    return fields if isinstance(fields, dict) and isinstance(fields.get("contents", ""), str) else {}
