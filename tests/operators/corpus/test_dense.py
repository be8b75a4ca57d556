from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.corpus.content import normalised
from operators.corpus.dense import DenseIndex
from operators.corpus.filters import Allowed
from operators.corpus.manifest import CorpusConfig

D = 16
RNG = np.random.default_rng(7)


def config(measure: str = "cosine", dimension: int = D) -> CorpusConfig:
    return CorpusConfig(embedder="test", dimension=dimension, measure=measure)


class Checked:
    """A dense index beside the arrays that it should agree with."""

    def __init__(self, folder: Path, measure: str = "cosine", *, exact_limit: int = 10_000) -> None:
        self.index = DenseIndex(folder, config(measure), exact_limit=exact_limit)
        self.rows: dict[int, np.ndarray] = {}
        self.measure = measure

    def add(self, keys: list[int], vectors: np.ndarray) -> None:
        vectors = normalised(vectors) if self.measure == "cosine" else vectors.astype(np.float32)
        self.index.add(np.array(keys, np.int64), vectors)
        self.rows |= dict(zip(keys, vectors, strict=True))

    def remove(self, *keys: int) -> None:
        self.index.remove(np.array(keys, np.int64))
        for key in keys:
            self.rows.pop(key, None)

    def vectors(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keys = np.array([k for k in keys.tolist() if k in self.rows], np.int64)
        return keys, np.array([self.rows[k] for k in keys.tolist()], np.float32).reshape(-1, D)

    def search(self, query: np.ndarray, limit: int, allowed: list[int] | None = None) -> list[tuple[int, float]]:
        only = None if allowed is None else Allowed(np.array(sorted(allowed), np.int64))
        keys, scores = self.index.search(query, limit, only, vectors=self.vectors)
        assert keys.dtype == np.int64
        assert scores.dtype == np.float32
        return list(zip(keys.tolist(), scores.tolist(), strict=True))

    def exactly(self, query: np.ndarray, limit: int, allowed: list[int] | None = None) -> list[int]:
        wanted = self.rows.keys() if allowed is None else self.rows.keys() & set(allowed)
        wide = query.astype(np.float64)
        score = {
            k: -((self.rows[k] - wide) ** 2).sum() if self.measure == "l2" else self.rows[k] @ wide for k in wanted
        }
        return sorted(score, key=lambda k: (-score[k], k))[:limit]


def random_rows(count: int) -> np.ndarray:
    return RNG.standard_normal((count, D)).astype(np.float32)


def pad(*numbers: float) -> np.ndarray:
    return np.array([*numbers, *[0] * (D - len(numbers))], np.float32)


@pytest.mark.parametrize("exact_limit", [10_000, 0], ids=["scan", "graph"])
@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("cosine", [(2, 1.0), (1, 0.6), (3, 0.0)]),
        ("ip", [(2, 2.0), (1, 1.8), (3, 0.0)]),
        ("l2", [(2, -1.0), (3, -2.0), (1, -(0.8**2 + 2.4**2))]),
    ],
)
def test_scores_are_what_they_say(tmp_path: Path, measure: str, expected: list, exact_limit: int) -> None:
    checked = Checked(tmp_path, measure, exact_limit=exact_limit)
    checked.add([1, 2, 3], np.stack([pad(1.8, 2.4), pad(2, 0), pad(0, 1)]))
    found = checked.search(pad(1, 0), 3)
    assert [k for k, _ in found] == [k for k, _ in expected]
    assert [s for _, s in found] == pytest.approx([s for _, s in expected], abs=1e-6)


@pytest.mark.parametrize("exact_limit", [10_000, 0], ids=["scan", "graph"])
def test_an_empty_index_finds_nothing(tmp_path: Path, exact_limit: int) -> None:
    checked = Checked(tmp_path, exact_limit=exact_limit)
    assert checked.search(pad(1), 5) == []
    checked.add([], np.empty((0, D), np.float32))
    checked.add([1], random_rows(1))
    assert checked.search(pad(1), 0) == []
    checked.remove(1, 2)
    assert checked.search(pad(1), 5) == []


@pytest.mark.parametrize("exact_limit", [10_000, 0], ids=["scan", "graph"])
def test_equal_vectors_come_in_the_order_of_their_keys(tmp_path: Path, exact_limit: int) -> None:
    checked = Checked(tmp_path, exact_limit=exact_limit)
    checked.add([50, 3, 40, 2**62, 7], np.repeat(random_rows(1), 5, axis=0))
    assert [k for k, _ in checked.search(pad(1), 3)] == [3, 7, 40]


@pytest.mark.parametrize("measure", ["cosine", "ip", "l2"])
def test_every_path_gives_a_hit_the_same_score(tmp_path: Path, measure: str) -> None:
    scan, graph = Checked(tmp_path, measure), Checked(tmp_path, measure, exact_limit=50)
    rows = random_rows(400)
    scan.add(list(range(400)), rows)
    graph.add(list(range(399, -1, -1)), rows[::-1])
    query = normalised(random_rows(1)[0])
    everything = dict(scan.search(query, 400))
    assert all(everything[k] == s for k, s in graph.search(query, 60))
    assert all(everything[k] == s for k, s in graph.search(query, 60, allowed=list(range(40))))
    assert all(everything[k] == s for k, s in graph.search(query, 60, allowed=list(range(100))))


@pytest.mark.parametrize("measure", ["cosine", "ip", "l2"])
def test_the_scan_agrees_with_double_precision(tmp_path: Path, measure: str) -> None:
    checked = Checked(tmp_path, measure)
    checked.add(list(range(0, 3000, 3)), random_rows(1000))
    for query in normalised(random_rows(20)):
        assert [k for k, _ in checked.search(query, 50)] == checked.exactly(query, 50)


def test_the_graph_finds_nearly_all(tmp_path: Path) -> None:
    checked = Checked(tmp_path, exact_limit=100)
    checked.add(list(range(3000)), random_rows(3000))
    shares = [
        len({k for k, _ in checked.search(query, 10)} & set(checked.exactly(query, 10))) / 10
        for query in normalised(random_rows(30))
    ]
    assert np.mean(shares) > 0.98


@pytest.mark.parametrize("allowed", [1, 40, 150, 1500])
def test_a_filter_is_never_overstepped_and_a_small_one_is_exact(tmp_path: Path, allowed: int) -> None:
    checked = Checked(tmp_path, exact_limit=100)
    checked.add(list(range(2000)), random_rows(2000))
    chosen = RNG.choice(2000, allowed, replace=False).tolist()
    query = normalised(random_rows(1)[0])
    found = [k for k, _ in checked.search(query, 50, allowed=chosen)]
    assert set(found) <= set(chosen)
    assert len(found) == min(50, allowed)
    if allowed <= 100:
        assert found == checked.exactly(query, 50, chosen)
    assert checked.search(query, 50, allowed=[]) == []


def test_a_search_for_more_than_ef_search_gets_them(tmp_path: Path) -> None:
    checked = Checked(tmp_path, exact_limit=0)
    checked.add(list(range(500)), random_rows(500))
    assert len(checked.search(pad(1), 300)) == 300
    assert len(checked.search(pad(1), 900)) == 500


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True)),
        st.tuples(st.just("reopen"), st.just([])),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(operations, st.integers(0, 2**32 - 1))
def test_any_order_of_changes_ends_where_it_should(tmp_path_factory, steps: list, seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("dense")
    checked = Checked(folder)
    for seq, (step, keys) in enumerate(steps, 1):
        if step == "add":
            checked.add(keys, rng.standard_normal((len(keys), D)))
        elif step == "remove":
            checked.remove(*keys)
        else:
            checked.index.save()
            checked.index = DenseIndex(folder, config())
            continue
        checked.index.seq = seq
    query = normalised(rng.standard_normal(D))
    assert len(checked.index) == len(checked.rows)
    assert [k for k, _ in checked.search(query, 40)] == checked.exactly(query, 40)
    checked.index._exact_limit = 0  # the graph itself must hold the same
    assert {k for k, _ in checked.search(query, 40)} == checked.rows.keys()


def test_what_was_saved_is_there_again(tmp_path: Path) -> None:
    checked = Checked(tmp_path)
    checked.add(list(range(200)), random_rows(200))
    checked.remove(*range(50))
    checked.index.seq = 17
    checked.index.save()
    again = DenseIndex(tmp_path, config())
    assert (again.seq, len(again), again.deleted, again.note) == (17, 150, 50, "")
    query = normalised(random_rows(1)[0])
    assert again.search(query, 20, vectors=checked.vectors)[0].tolist() == checked.exactly(query, 20)


def test_a_small_change_to_a_large_index_is_not_worth_saving(tmp_path: Path) -> None:
    checked = Checked(tmp_path)
    checked.add(list(range(1000)), random_rows(1000))
    checked.index.seq = 1
    checked.index.save()
    checked.add([5000], random_rows(1))
    checked.index.seq = 2
    checked.index.save()
    assert [p.name for p in tmp_path.glob("*.hnsw")] == ["dense-1.hnsw"]


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("dense-3.hnsw", lambda path: path.write_bytes(path.read_bytes()[:-100])),
        ("dense-3.hnsw", lambda path: path.write_bytes(path.read_bytes()[:200] + b"x" + path.read_bytes()[201:])),
        ("dense-3.hnsw", lambda path: path.unlink()),
        ("dense.json", lambda path: path.write_text("{")),
    ],
    ids=["torn", "flipped", "missing", "bad description"],
)
def test_a_damaged_file_is_noticed_and_not_used(tmp_path: Path, name: str, harm) -> None:
    checked = Checked(tmp_path)
    checked.add(list(range(20)), random_rows(20))
    checked.index.seq = 3
    checked.index.save()
    harm(tmp_path / name)
    again = DenseIndex(tmp_path, config())
    assert (again.seq, len(again)) == (0, 0)
    assert again.note
