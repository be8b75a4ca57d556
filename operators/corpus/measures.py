"""Measures of how near two vectors are, as semantic scores: 1 - distance, so that more is better by every measure.

Shape legend: N = vectors, D = dimensions.

=========== ===================================================== ===================== =================
measure     distance                                              score                 range of scores
=========== ===================================================== ===================== =================
"cosine"    1 - cosine of the angle between them                  the cosine            -1 to 1
"ip"        1 - inner product (hnswlib's)                         the inner product     any
"l2"        Euclidean, not squared                                1 - distance          up to 1
"l1"        Manhattan: sum of absolute differences                1 - distance          up to 1
"hamming"   share of the D numbers of which only one is positive  share that agrees     0 to 1
"jaccard"   Jaccard's, of the sets of positive dimensions         shared by united      0 to 1
=========== ===================================================== ===================== =================
"""

from __future__ import annotations

import numpy as np

MEASURES = ("cosine", "l2", "ip", "l1", "hamming", "jaccard")


def semantic_scores(vectors: np.ndarray, query: np.ndarray, measure: str) -> np.ndarray:
    """Score of each vector to the query, float32[N].

    It depends on the two vectors alone, to the last bit: not on the other rows, nor on a row's place among them. So
    searches that take different ways, or read different shards, agree. That is why nothing here calls BLAS, whose sums
    depend on a row's place; reading the vectors from memory takes as long as its sums would.

    Args:
        vectors: float32[N, D], of any length. One of zeros has cosine 0 to all; two empty sets are alike.
        query: float32[D].
        measure: One of MEASURES.

    >>> vectors = np.array([[1, 1, 1, 1], [-1, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    >>> query = np.array([2, 0, 0, 0], np.float32)
    >>> for measure in MEASURES:
    ...     print(f"{measure:8}", semantic_scores(vectors, query, measure).tolist())
    cosine   [0.5, -1.0, 0.0]
    l2       [-1.0, -2.0, -1.0]
    ip       [2.0, -2.0, 0.0]
    l1       [-3.0, -2.0, -1.0]
    hamming  [0.25, 0.75, 0.75]
    jaccard  [0.25, 0.0, 0.0]
    """
    rows_ND, query_D = np.ascontiguousarray(vectors, np.float32), np.ascontiguousarray(query, np.float32)
    if measure in ("hamming", "jaccard"):
        return _of_signs(rows_ND, query_D, measure)
    if measure in ("cosine", "ip"):
        products_N = np.einsum("nd,d->n", rows_ND, query_D)
        return products_N if measure == "ip" else _divided(products_N, _lengths(rows_ND) * _lengths(query_D[None]))
    away_ND = rows_ND - query_D
    return np.asarray(1 - (_lengths(away_ND) if measure == "l2" else np.einsum("nd->n", np.abs(away_ND, out=away_ND))))


def _lengths(rows_ND: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.einsum("nd,nd->n", rows_ND, rows_ND)))


def _divided(numbers_N: np.ndarray, by_N: np.ndarray) -> np.ndarray:
    """The quotients, float32[N]; 0 where the divisor is 0."""
    return np.asarray(np.divide(numbers_N, by_N, out=np.zeros(len(numbers_N), np.float32), where=by_N > 0))


def _of_signs(rows_ND: np.ndarray, query_D: np.ndarray, measure: str) -> np.ndarray:
    bits, asked = np.packbits(rows_ND > 0, axis=1), np.packbits(query_D > 0)
    if measure == "hamming":
        return np.asarray(1 - _ones(bits ^ asked) / len(query_D), np.float32)
    shared, united = _ones(bits & asked), _ones(bits | asked)
    return np.asarray(np.where(united == 0, 1, shared / np.maximum(united, 1)), np.float32)


def _ones(bits: np.ndarray) -> np.ndarray:
    return np.asarray(np.bitwise_count(bits).sum(axis=1, dtype=np.int64))
