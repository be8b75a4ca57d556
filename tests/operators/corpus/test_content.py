import math

import msgspec
import numpy as np
import pytest

from engine.errors import InvalidInput
from operators.corpus.content import MAX_LENGTH, MAX_NESTING, check, check_metadata, comparable, prepared
from operators.corpus.measures import MEASURES, semantic_scores
from operators.messages import Document


def vectors(*lengths: float) -> np.ndarray:
    """One of each length, float32[N, 16]."""
    return np.outer(np.float32(lengths), np.full(16, 0.25, np.float32))


@pytest.mark.parametrize("measure", MEASURES)
def test_vectors_that_may_be_stored_have_scores_that_are_numbers(measure: str) -> None:
    longest = MAX_LENGTH * 0.999
    rows = vectors(longest, -longest, 0, 1)
    assert comparable(rows, measure).all()
    for query in rows:
        assert np.isfinite(semantic_scores(rows, query, measure)).all()


def test_a_vector_too_long_to_be_compared_is_refused_unless_it_is_made_unit_length(make) -> None:
    long = msgspec.structs.replace(make("a", chunks=["one", "two"]), vectors=vectors(1, 1e30))
    for measure in ("ip", "l2", "l1"):
        with pytest.raises(InvalidInput, match=r"vector of chunk 1 is longer than 1e\+18"):
            prepared(long, dimension=16, measure=measure)
    assert prepared(long, dimension=16, measure="cosine").vectors == pytest.approx(vectors(1, 1))


def test_what_is_not_finite_cannot_be_compared() -> None:
    rows = vectors(1, 1, 1)
    rows[0, 3], rows[1, 5] = np.inf, np.nan
    assert comparable(rows, "cosine").tolist() == comparable(rows, "ip").tolist() == [False, False, True]


def nested(levels: int) -> dict:
    inner: dict = {}
    for _ in range(levels - 1):
        inner = {"a": inner}
    return inner


def test_metadata_that_filters_could_not_read_later_is_refused() -> None:
    check_metadata("d", {"a": [2**64 - 1, -(2**63), True, None, "x", 1.5], "b": nested(MAX_NESTING - 1)})
    for bad in (
        {"a": nested(MAX_NESTING)},
        {"a": [[nested(900)]]},
        {"a": nested(100_000)},
        {"a": 10**5000},
        *({"a": [{"b": number}]} for number in (2**64, -(2**63) - 1, 10**400, math.nan, math.inf, -math.inf)),
        {"a": {1: 2}},
    ):
        with pytest.raises(InvalidInput, match="document 'd': metadata must be JSON values: "):
            check_metadata("d", bad)
    with pytest.raises(InvalidInput, match="metadata are None; expected an object"):
        check_metadata("d", None)


@pytest.mark.parametrize("field", ["id", "title", "text", "source", "media_type", "owner"])
def test_a_document_whose_texts_are_none_is_refused(field: str) -> None:
    document = msgspec.structs.replace(Document(id="d", title="", text=""), **{field: None})
    with pytest.raises(InvalidInput, match=f"its {field} is None; expected a text"):
        check(document)
