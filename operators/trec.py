"""TREC's and BEIR's files: queries and judgements in, runs out, and how good a run is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NewType, TextIO

import msgspec
import numpy as np

from engine.errors import InvalidInput
from operators.messages import Passage

QueryId = NewType("QueryId", str)
Qrels = dict[QueryId, dict[str, int]]  # query -> document -> grade; above 0 is relevant
Run = dict[QueryId, list[str]]  # query -> documents, best first


class Query(msgspec.Struct, frozen=True):
    """One line of a BEIR query file."""

    id: QueryId
    text: str


class RankedDocument(msgspec.Struct, frozen=True):
    """A document of a run and its score."""

    id: str
    score: float


class Evaluation(msgspec.Struct, frozen=True):
    """How good a run is: means over all judged queries, those that the run lacks counting 0.

    These are trec_eval's `recall_k`, `ndcg_cut_10` and `recip_rank`, with its option `-c`.
    """

    queries: int
    recall: dict[int, float]  # share of the relevant documents among the first k
    ndcg_at_10: float  # gain = grade, discount = log2(rank + 1)
    mrr: float  # 1 / rank of the first relevant document


def read_queries(path: str | Path) -> list[Query]:
    """The queries of a BEIR file: one JSON object a line, with `_id` and `text`; other fields are left alone.

    Raises:
        InvalidInput: The file cannot be read, a line is no such object, or an id comes twice; with the line's number.
    """
    queries: dict[QueryId, Query] = {}
    for number, line in _lines(path):
        query = _query(line, f"{path}, line {number}")
        if query.id in queries:
            raise InvalidInput(f"{path}, line {number}: the query id {query.id!r} comes twice")
        queries[query.id] = query
    if not queries:
        raise InvalidInput(f'{path} holds no queries; expected lines such as {{"_id": "q1", "text": "..."}}')
    return list(queries.values())


def read_qrels(path: str | Path) -> Qrels:
    """Relevance judgements: BEIR's three columns (query, document, grade; a header is skipped) or TREC's four.

    Raises:
        InvalidInput: The file cannot be read or a line has other columns; with the line's number.
    """
    qrels: Qrels = {}
    for number, line in _lines(path):
        fields = line.split("\t") if "\t" in line else line.split()
        if number == 1 and fields[-1] == "score":
            continue
        if len(fields) not in {3, 4} or not fields[-1].strip().lstrip("-").isdigit():
            raise InvalidInput(f"{path}, line {number}: expected query id, document id and a whole number as grade")
        qrels.setdefault(QueryId(fields[0]), {})[fields[-2]] = int(fields[-1])
    return qrels


def documents(passages: Iterable[Passage]) -> list[RankedDocument]:
    """The documents of passages, each where and with the score that its best passage has.

    Raises:
        InvalidInput: A passage has no score.
    """
    best: dict[str, RankedDocument] = {}
    for passage in passages:
        if passage.score is None:
            raise InvalidInput("a run needs scores; search with include_scores")
        best.setdefault(passage.document_id, RankedDocument(passage.document_id, passage.score))
    return list(best.values())


def write_run(file: TextIO, query: QueryId, ranked: Sequence[RankedDocument], *, tag: str = "headrace") -> None:
    """Append one query's ranking to a TREC run: `query Q0 document rank score tag`.

    trec_eval ignores the rank and sorts by the score as a 32-bit number, so equal scores are written with the smallest
    step between them that keeps this order.

    Raises:
        InvalidInput: An id is empty or holds white space, which the format cannot express; nothing is written then.
    """
    for name in (query, tag, *(document.id for document in ranked)):
        if not name or name.split() != [name]:
            raise InvalidInput(f"a TREC run cannot name {name!r}: its columns are divided by spaces; rename it")
    previous = np.float32(math.inf)
    for rank, document in enumerate(ranked, 1):
        previous = min(np.float32(document.score), np.nextafter(previous, np.float32(-math.inf)))
        file.write(f"{query} Q0 {document.id} {rank} {previous!s} {tag}\n")


def read_run(path: str | Path) -> Run:
    """The documents of each query of a TREC run, by descending score as trec_eval takes them.

    Raises:
        InvalidInput: The file cannot be read or a line has not six columns; with the line's number.
    """
    rows: dict[QueryId, list[tuple[float, str]]] = {}
    for number, line in _lines(path):
        fields = line.split()
        if len(fields) != 6:
            raise InvalidInput(f"{path}, line {number}: expected six columns: query Q0 document rank score tag")
        try:
            score = float(fields[4])
        except ValueError as error:
            raise InvalidInput(f"{path}, line {number}: the score {fields[4]!r} is no number") from error
        rows.setdefault(QueryId(fields[0]), []).append((score, fields[2]))
    return {query: [document for _, document in sorted(scored, reverse=True)] for query, scored in rows.items()}


def evaluate(qrels: Qrels, run: Mapping[QueryId, Sequence[str]], *, cutoffs: Sequence[int] = (1, 5, 10)) -> Evaluation:
    """How good a run is, over the queries that have a relevant document.

    Args:
        qrels: Judgements; a document that is not judged is not relevant.
        run: Documents of each query, best first, none twice.
        cutoffs: The k of recall@k.

    Raises:
        InvalidInput: No query has a relevant document.

    Example:
        >>> evaluate({QueryId("q"): {"a": 1, "b": 1}}, {QueryId("q"): ["x", "a"]}, cutoffs=[2]).recall
        {2: 0.5}
    """
    relevant = {query: {d: g for d, g in grades.items() if g > 0} for query, grades in qrels.items()}
    judged = [(grades, run.get(query, [])) for query, grades in relevant.items() if grades]
    if not judged:
        raise InvalidInput("no query has a relevant document in these judgements; nothing can be evaluated")
    return Evaluation(
        queries=len(judged),
        recall={k: _mean(recall(grades, ranked, k) for grades, ranked in judged) for k in cutoffs},
        ndcg_at_10=_mean(ndcg(grades, ranked, 10) for grades, ranked in judged),
        mrr=_mean(reciprocal_rank(grades, ranked) for grades, ranked in judged),
    )


def recall(relevant: Mapping[str, int], ranked: Sequence[str], k: int) -> float:
    """Share of the relevant documents among the first k."""
    return len(relevant.keys() & set(ranked[:k])) / len(relevant)


def ndcg(relevant: Mapping[str, int], ranked: Sequence[str], k: int) -> float:
    """Normalised discounted cumulative gain (Jaervelin and Kekaelaeinen, TOIS 2002) of the first k."""
    ideal = sorted(relevant.values(), reverse=True)
    return _dcg([relevant.get(document, 0) for document in ranked[:k]]) / _dcg(ideal[:k])


def reciprocal_rank(relevant: Mapping[str, int], ranked: Sequence[str]) -> float:
    """1 / rank of the first relevant document, 0 without one."""
    return next((1 / rank for rank, document in enumerate(ranked, 1) if document in relevant), 0.0)


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def _query(line: str, where: str) -> Query:
    try:
        fields: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in ("_id", "text")):
        raise InvalidInput(f'{where}: expected an object with the texts "_id" and "text"')
    return Query(QueryId(fields["_id"]), fields["text"])


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, counted from 1, without their ends."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
