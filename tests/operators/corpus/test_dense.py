"""What every dense index does, whatever its measure; test_hnsw.py has what only a graph does."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.corpus.allowed import Allowed
from operators.corpus.content import normalised
from operators.corpus.dense import Dense, DenseIndex, ExactIndex, open_dense
from operators.corpus.manifest import CorpusConfig
from operators.corpus.measures import MEASURES, semantic_scores

D = 16
EVERY_MEASURE = pytest.mark.parametrize("measure", MEASURES)


class Checked:
    """A dense index beside the vectors that it should hold."""

    def __init__(self, folder: Path, measure: str) -> None:
        self.folder, self.measure = folder, measure
        self.rows: dict[int, np.ndarray] = {}
        self.index: Dense = self._open()

    def _open(self) -> Dense:
        return open_dense(self.folder, CorpusConfig(embedder="test", dimension=D, measure=self.measure))

    def add(self, keys: list[int], vectors: np.ndarray) -> None:
        vectors = normalised(vectors) if self.measure == "cosine" else vectors.astype(np.float32)
        self.index.add(np.array(keys, np.int64), vectors)
        self.rows |= dict(zip(keys, vectors, strict=True))

    def remove(self, *keys: int) -> None:
        self.index.remove(np.array(keys, np.int64))
        for key in keys:
            self.rows.pop(key, None)

    def reopen(self) -> None:
        """As after a clean end; what is not saved follows the database anew."""
        self.index.save(closing=True)
        self.index.close()
        self.index = self._open()
        if not self.index.seq and self.rows:
            self.index.add(np.array(list(self.rows)), np.array(list(self.rows.values())))

    def search(self, query: np.ndarray, limit: int, allowed: list[int] | None = None, measure: str = "") -> list[tuple]:
        only = None if allowed is None else Allowed(np.array(sorted(allowed), np.int64))
        keys, scores, _ = self.index.search(query, limit, only, measure=measure)
        assert (keys.dtype, scores.dtype) == (np.int64, np.float32)
        return list(zip(keys.tolist(), scores.tolist(), strict=True))

    def exactly(self, query: np.ndarray, limit: int, allowed: list[int] | None = None, measure: str = "") -> list:
        keys = sorted(self.rows if allowed is None else self.rows.keys() & set(allowed))
        vectors = np.array([self.rows[key] for key in keys], np.float32).reshape(-1, D)
        scores = semantic_scores(vectors, query, measure or self.measure).tolist()
        return sorted(zip(keys, scores, strict=True), key=lambda hit: (-hit[1], hit[0]))[:limit]


def random_rows(count: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)


def pad(*numbers: float) -> np.ndarray:
    return np.array([*numbers, *[0] * (D - len(numbers))], np.float32)


def test_only_measures_that_a_graph_knows_get_one(tmp_path):
    kinds = {measure: type(Checked(tmp_path, measure).index) for measure in MEASURES}
    graphs = {"cosine", "ip", "l2"}
    assert kinds == {measure: DenseIndex if measure in graphs else ExactIndex for measure in MEASURES}


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("cosine", [(2, 1.0), (1, 0.6), (3, 0.0)]),
        ("ip", [(2, 2.0), (1, 1.8), (3, 0.0)]),
        ("l2", [(2, 0.0), (3, 1 - 2**0.5), (1, 1 - (0.8**2 + 2.4**2) ** 0.5)]),
        ("l1", [(2, 0.0), (3, -1.0), (1, 1 - 3.2)]),
        ("hamming", [(2, 1.0), (1, 15 / 16), (3, 14 / 16)]),
        ("jaccard", [(2, 1.0), (1, 0.5), (3, 0.0)]),
    ],
)
def test_hits_come_best_first_with_the_score_of_their_measure(tmp_path, measure, expected):
    checked = Checked(tmp_path, measure)
    checked.add([1, 2, 3], np.stack([pad(1.8, 2.4), pad(2, 0), pad(0, 1)]))
    found = checked.search(pad(1, 0), 3)
    assert [key for key, _ in found] == [key for key, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-6)


@EVERY_MEASURE
def test_an_empty_index_finds_nothing(tmp_path, measure):
    checked = Checked(tmp_path, measure)
    assert checked.search(pad(1), 5) == []
    checked.add([], np.empty((0, D), np.float32))
    checked.add([1], random_rows(1))
    assert checked.search(pad(1), 0) == []
    checked.remove(1, 2)
    assert checked.search(pad(1), 5) == []
    assert checked.index.keys().tolist() == []


@EVERY_MEASURE
def test_a_filter_that_matches_nothing_finds_nothing(tmp_path, measure):
    checked = Checked(tmp_path, measure)
    checked.add(list(range(30)), random_rows(30))
    assert checked.search(pad(1), 5, allowed=[]) == []
    assert checked.search(pad(1), 5, allowed=[100, 101]) == []  # chunks without a vector
    assert checked.search(pad(1), 5, allowed=[100, 7, 3]) == checked.exactly(pad(1), 5, [7, 3])


@EVERY_MEASURE
def test_equal_vectors_come_in_the_order_of_their_keys(tmp_path, measure):
    checked = Checked(tmp_path, measure)
    checked.add([50, 3, 40, 2**62, 7], np.repeat(random_rows(1), 5, axis=0))
    assert [key for key, _ in checked.search(pad(1), 3)] == [3, 7, 40]


@EVERY_MEASURE
@pytest.mark.parametrize("asked", MEASURES)
def test_a_query_by_another_measure_compares_every_vector(tmp_path, measure, asked):
    checked = Checked(tmp_path, measure)
    checked.add(list(range(40)), 3 * random_rows(40))
    query = random_rows(1, seed=8)[0]
    assert checked.search(query, 10, measure=asked) == checked.exactly(query, 10, measure=asked)
    some = list(range(0, 40, 3))
    assert checked.search(query, 10, some, measure=asked) == checked.exactly(query, 10, some, measure=asked)


@EVERY_MEASURE
def test_an_index_tells_how_it_searched(tmp_path, measure):
    checked = Checked(tmp_path, measure)
    checked.add(list(range(1200)), random_rows(1200))
    found = [checked.index.search(pad(1), 3, only).how for only in (None, Allowed(np.arange(10)))]
    assert found == [f"compared all 1,200 vectors by {measure}", f"compared the 10 allowed of 1,200 by {measure}"]


@EVERY_MEASURE
def test_what_is_stored_can_be_read_back(tmp_path, measure):
    checked = Checked(tmp_path, measure)
    checked.add([5, 3, 9], random_rows(3))
    checked.add([3], random_rows(1, seed=8))
    checked.remove(5)
    for _ in range(2):
        assert sorted(checked.index.keys()) == [3, 9]
        stored = checked.index.stored(np.array([9, 5, 3]))
        assert stored.tolist() == [checked.rows[9].tolist(), checked.rows[3].tolist()]
        checked.reopen()


@EVERY_MEASURE
def test_an_index_can_begin_anew(tmp_path, measure):
    checked = Checked(tmp_path, measure)
    checked.add(list(range(20)), random_rows(20))
    checked.index.seq = 4
    checked.index.save()
    checked.index.clear()
    assert (checked.index.seq, len(checked.index), checked.index.deleted) == (0, 0, 0)
    assert checked.search(pad(1), 5) == []
    checked.rows.clear()
    checked.add([1, 2], random_rows(2))
    checked.index.seq = 5
    checked.reopen()
    assert checked.search(pad(1), 5) == checked.exactly(pad(1), 5)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "reopen"]),
        st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True),
    ),
    max_size=12,
)


@EVERY_MEASURE
@settings(max_examples=25, deadline=None)
@given(steps, st.integers(0, 2**32 - 1))
def test_any_order_of_changes_ends_where_it_should(tmp_path_factory, measure, steps, seed):
    rng = np.random.default_rng(seed)
    checked = Checked(tmp_path_factory.mktemp("dense"), measure)
    for seq, (step, keys) in enumerate(steps, 1):
        if step == "add":
            checked.add(keys, rng.standard_normal((len(keys), D)))
        elif step == "remove":
            checked.remove(*keys)
        else:
            checked.reopen()
        checked.index.seq = seq
    query = normalised(rng.standard_normal(D))
    assert len(checked.index) == len(checked.rows)
    assert checked.search(query, 40) == checked.exactly(query, 40)
    if isinstance(checked.index, DenseIndex):  # the graph itself must hold the same
        checked.index.close()
        graph = checked.index._graph
        graph.link(1000)
        living = graph.table.rows_of(graph.table.living_keys())
        assert graph._links.get_items(living, return_type="list") == [
            checked.rows[key].tolist() for key in sorted(checked.rows)
        ]
        assert set(graph.table.keys[graph.nearest(query, 3)].tolist()) <= checked.rows.keys()
