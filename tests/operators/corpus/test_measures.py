import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.corpus.measures import MEASURES, semantic_scores


def reference(vector: np.ndarray, query: np.ndarray, measure: str) -> float:
    """1 - distance, in double precision and in so many words."""
    x, q = vector.astype(np.float64), query.astype(np.float64)
    a, b = {i for i, value in enumerate(x) if value > 0}, {i for i, value in enumerate(q) if value > 0}
    distances = {
        "cosine": lambda: 1 - (x @ q / (np.linalg.norm(x) * np.linalg.norm(q)) if x.any() and q.any() else 0),
        "ip": lambda: 1 - x @ q,
        "l2": lambda: np.linalg.norm(x - q),
        "l1": lambda: np.abs(x - q).sum(),
        "hamming": lambda: len(a ^ b) / len(x),
        "jaccard": lambda: 1 - len(a & b) / len(a | b) if a | b else 0,
    }
    return float(1 - distances[measure]())


@pytest.mark.parametrize("measure", MEASURES)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_scores_are_one_minus_the_distance(measure, dimension, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, (20, dimension)).astype(np.float32)
    query = rng.integers(-2, 3, dimension).astype(np.float32)
    expected = [reference(vector, query, measure) for vector in vectors]
    assert semantic_scores(vectors, query, measure) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("measure", MEASURES)
@given(st.integers(1, 200), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_a_score_depends_on_the_two_vectors_alone(measure, dimension, count, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, dimension)).astype(np.float32)
    query = rng.standard_normal(dimension).astype(np.float32)
    together = semantic_scores(vectors, query, measure)
    assert together.dtype == np.float32
    alone = [semantic_scores(vectors[row : row + 1], query, measure)[0] for row in range(count)]
    assert together.tolist() == alone
    order = rng.permutation(count)
    assert semantic_scores(vectors[order], query, measure).tolist() == together[order].tolist()
    wide = np.zeros((count, dimension + 3), np.float32)
    wide[:, 1:-2] = vectors  # as vectors lie in a file of hnswlib's
    assert semantic_scores(wide[:, 1:-2], query, measure).tolist() == together.tolist()


@pytest.mark.parametrize("measure", MEASURES)
def test_no_vectors_have_no_scores(measure):
    scores = semantic_scores(np.empty((0, 5), np.float32), np.ones(5, np.float32), measure)
    assert (scores.shape, scores.dtype) == ((0,), np.float32)


@pytest.mark.parametrize("measure", ["cosine", "l2", "l1", "hamming", "jaccard"])
def test_nothing_is_more_like_a_vector_than_itself(measure):
    vector = np.array([3, -4, 0, 12], np.float32)
    assert semantic_scores(vector[None], vector, measure).tolist() == [1]


def test_two_empty_sets_are_alike_and_zeros_have_no_direction():
    zeros = np.zeros((1, 9), np.float32)
    scores = {measure: float(semantic_scores(zeros, zeros[0], measure)[0]) for measure in MEASURES}
    assert scores == {"cosine": 0, "ip": 0, "l2": 1, "l1": 1, "hamming": 1, "jaccard": 1}
