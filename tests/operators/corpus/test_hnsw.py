import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.corpus import hnsw
from operators.corpus.allowed import Allowed
from operators.corpus.content import normalised
from operators.corpus.hnsw import DenseIndex
from operators.corpus.manifest import CorpusConfig
from operators.corpus.measures import semantic_scores

D = 16
MEASURE = pytest.mark.parametrize("measure", ["cosine", "ip", "l2"])


def opened(folder: Path, measure: str = "cosine", *, exact_limit: int = 0) -> DenseIndex:
    """By default one that walks through its graph whenever that is not slower."""
    config = CorpusConfig(embedder="test", dimension=D, measure=measure)
    return DenseIndex(folder, config, exact_limit=exact_limit)


def random_rows(count: int, seed: int = 7) -> np.ndarray:
    return normalised(np.random.default_rng(seed).standard_normal((count, D)))


def filled(folder: Path, rows: np.ndarray, measure: str = "cosine", *, exact_limit: int = 0) -> DenseIndex:
    index = opened(folder, measure, exact_limit=exact_limit)
    index.add(np.arange(len(rows)), rows)
    return settled(index)


def settled(index: DenseIndex) -> DenseIndex:
    """Waits until nothing goes on in the background."""
    if worker := index._worker:
        worker.join(60)
        assert not worker.is_alive()
    return index


def nearest(rows: np.ndarray, query: np.ndarray, limit: int, among: np.ndarray | None = None) -> list[int]:
    keys = np.arange(len(rows)) if among is None else among
    scores = semantic_scores(rows[keys], query, "cosine")
    return keys[np.lexsort((keys, -scores))[:limit]].tolist()


# Ways of searching


@MEASURE
def test_every_way_gives_a_hit_the_same_score(tmp_path: Path, measure: str):
    rows, query = random_rows(2000), random_rows(1, seed=8)[0]
    index = filled(tmp_path, rows, measure)
    every = index.search(query, 2000)
    assert every.how.startswith("compared all")
    scores = dict(zip(every.keys.tolist(), every.scores.tolist(), strict=True))
    for allowed, way in ((None, "walked"), (range(40), "compared the 40"), (range(1900), "walked")):
        hits = index.search(query, 20, None if allowed is None else Allowed(np.array(allowed)))
        assert hits.how.startswith(way)
        assert [scores[key] for key in hits.keys.tolist()] == hits.scores.tolist()
    parts = [filled(tmp_path / str(part), rows[part::3], measure) for part in range(3)]
    for part, index in enumerate(parts):
        hits = index.search(query, 20)
        assert [scores[3 * key + part] for key in hits.keys.tolist()] == hits.scores.tolist()


def test_the_graph_finds_nearly_all(tmp_path: Path):
    rows = random_rows(3000)
    index = filled(tmp_path, rows)
    shares = [
        len({*index.search(query, 10).keys.tolist()} & {*nearest(rows, query, 10)}) / 10
        for query in random_rows(30, seed=8)
    ]
    assert np.mean(shares) > 0.98


@pytest.mark.parametrize("exact_limit", [0, 100])
@pytest.mark.parametrize("allowed", [1, 40, 150, 1900])
def test_a_filter_is_never_overstepped_and_a_small_one_is_exact(tmp_path: Path, allowed: int, exact_limit: int):
    rows = random_rows(2000)
    index = filled(tmp_path, rows, exact_limit=exact_limit)
    chosen = np.sort(np.random.default_rng(2).choice(2000, allowed, replace=False))
    query = random_rows(1, seed=8)[0]
    hits = index.search(query, 50, Allowed(chosen))
    assert set(hits.keys.tolist()) <= set(chosen.tolist())
    assert len(hits.keys) == min(50, allowed)
    if hits.how.startswith("compared"):
        assert hits.keys.tolist() == nearest(rows, query, 50, chosen)
    assert hits.how.startswith("compared") == (allowed < 1900)


def test_a_filter_that_lets_through_only_what_is_far_away_is_exact(tmp_path: Path):
    rows, query = random_rows(6000), random_rows(1, seed=8)[0]
    index = filled(tmp_path, rows)
    far = np.sort(np.argsort(rows @ query)[:3000])
    hits = index.search(query, 10, Allowed(far))
    assert hits.how == (
        "walked the graph, ef 256, 50 % allowed and met 0; compared the 3,000 allowed of 6,000 by cosine"
    )
    assert hits.keys.tolist() == nearest(rows, query, 10, far)


def test_vectors_that_the_graph_cannot_reach_are_found(tmp_path: Path, monkeypatch):
    rows = random_rows(2000)
    index = filled(tmp_path, rows)
    monkeypatch.setattr(index._graph, "nearest", lambda *_: np.empty(0, np.int64))  # as when hnswlib gives up
    query = random_rows(1, seed=8)[0]
    hits = index.search(query, 10)
    assert hits.keys.tolist() == nearest(rows, query, 10)
    assert hits.how == "walked the graph, ef 64 and met 0; compared all 2,000 vectors by cosine"


def test_a_query_may_ask_for_more_candidates(tmp_path: Path):
    index = filled(tmp_path, random_rows(2000))
    query = random_rows(1, seed=8)[0]
    ways = [index.search(query, limit, ef_search=ef).how for limit, ef in ((10, 0), (100, 0), (10, 150), (10, 1))]
    assert ways == [f"walked the graph, ef {ef}" for ef in (64, 100, 150, 10)]


# Dead vectors


def test_what_was_deleted_never_comes_back(tmp_path: Path):
    rows, moved = random_rows(2000), -random_rows(2000)
    index = filled(tmp_path, rows)
    index.remove(np.arange(0, 2000, 2))
    for _ in range(2):
        hits = index.search(rows[10], 5)
        assert hits.how.startswith("walked")
        assert all(key % 2 for key in hits.keys.tolist())
        assert all(key % 2 for key in index.search(rows[10], 2000).keys.tolist())
        index.seq = 1
        index.save()
        index = opened(tmp_path)
    index.add(np.array([10, 11]), moved[[10, 11]])  # one is back with another vector, one is replaced
    for _ in range(2):
        for key in (10, 11):
            hits = index.search(rows[key], 5)
            assert hits.how.startswith("walked")
            assert key not in hits.keys
            assert index.search(moved[key], 1).keys.tolist() == [key]
        index.save(closing=True)
        index = opened(tmp_path)


def test_when_most_vectors_are_dead_the_living_are_linked_anew(tmp_path: Path):
    rows = random_rows(2400)
    index = filled(tmp_path, rows)
    index.remove(np.arange(1200))
    assert settled(index).deleted == 1200
    index.remove(np.arange(1200, 1210))
    assert settled(index).deleted == 0
    assert index.keys().tolist() == list(range(1210, 2400))
    hits = index.search(rows[5], 10)
    assert hits.how.startswith("walked")
    assert hits.keys.tolist() == nearest(rows, rows[5], 10, np.arange(1210, 2400))
    index.save()  # a small share has changed since, but nothing of the file is right
    assert opened(tmp_path).keys().tolist() == index.keys().tolist()
    index.remove(np.arange(2400))
    assert (len(settled(index)), index.deleted) == (0, 0)
    assert index.search(rows[5], 10).keys.tolist() == []


changes = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 400), min_size=1, max_size=60, unique=True)), max_size=8
)


@settings(max_examples=30, deadline=None)
@given(changes, changes, st.integers(0, 2**32 - 1))
def test_changes_made_during_a_rebuild_are_in_the_new_graph(tmp_path_factory, before, during, seed):
    rng = np.random.default_rng(seed)
    index, rows = opened(tmp_path_factory.mktemp("dense")), {}

    def change(added: bool, keys: list[int]) -> None:
        vectors = normalised(rng.standard_normal((len(keys), D)))
        if added:
            index.add(np.array(keys), vectors)
            rows.update(zip(keys, vectors.tolist(), strict=True))
        else:
            index.remove(np.array(keys))
            for key in keys:
                rows.pop(key, None)

    change(True, list(range(300)))
    for each in before:
        change(*each)
    coming = iter(during)

    def copy(*arguments):
        copied = hnsw_copy(*arguments)
        if not index._changing.locked():
            for each in [*coming][:2]:
                change(*each)
        return copied

    hnsw_copy = hnsw._copy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hnsw, "_copy", copy)
        index.rebuild()
    assert index.keys().tolist() == sorted(rows)
    assert index.stored(np.array(sorted(rows), np.int64)).tolist() == [rows[key] for key in sorted(rows)]
    index.close()
    graph = index._graph
    graph.link(1000)
    living = graph.table.rows_of(graph.table.living_keys())
    assert graph._links.get_items(living, return_type="list") == [rows[key] for key in sorted(rows)]
    assert set(graph.table.keys[graph.nearest(np.ones(D, np.float32), 20)].tolist()) <= rows.keys()


def test_a_rebuild_ends_when_the_index_begins_anew_or_is_closed(tmp_path: Path, monkeypatch):
    index = filled(tmp_path, random_rows(300))
    copy = hnsw._copy
    monkeypatch.setattr(hnsw, "_copy", lambda *arguments: (index.clear(), copy(*arguments))[1])
    index.rebuild()
    assert len(index) == 0
    index = filled(tmp_path, random_rows(300))
    index.remove(np.arange(10))
    index.close()
    index.rebuild()
    assert index.deleted == 10


# New vectors


def test_new_vectors_are_found_before_they_are_linked(tmp_path: Path, monkeypatch):
    rows = random_rows(2000)
    index, go_on = filled(tmp_path, rows[:1500]), threading.Event()
    link = index._graph.link
    monkeypatch.setattr(index._graph, "link", lambda most: (go_on.wait(60), link(most)))
    monkeypatch.setattr(index, "_searching", Unlocked())
    index.add(np.arange(1500, 2000), rows[1500:])
    index.remove(np.array([1999]))
    hits = index.search(rows[1900], 20)
    assert hits.how == "walked the graph, ef 64, compared 500 new vectors"
    found = nearest(rows, rows[1900], 20, np.arange(1999))
    assert len({*hits.keys.tolist()} & {*found}) >= 18
    assert hits.keys[0] == 1900
    far = np.arange(10, 1999)[np.argsort(rows[10:1999] @ rows[1900])[:1200]]  # new ones do not make up for a walk
    hits = index.search(rows[1900], 20, Allowed(np.sort(far)))
    assert hits.keys.tolist() == nearest(rows, rows[1900], 20, np.sort(far))
    go_on.set()
    assert settled(index).search(rows[1900], 20).how == "walked the graph, ef 64"
    index.seq = 1
    index.save()
    assert opened(tmp_path).keys().tolist() == list(range(1999))


class Unlocked:
    """Stands for a SharedLock in a test that stops the thread which has it."""

    @staticmethod
    def shared():
        return nullcontext()

    alone = shared


def test_whoever_adds_more_than_is_linked_meanwhile_helps(tmp_path: Path):
    index = opened(tmp_path)
    for start in range(0, 6000, 2000):
        index.add(np.arange(start, start + 2000), random_rows(2000, seed=start))
        assert len(index._graph.unlinked) <= 1000
    index.seq = 1
    index.save()  # with all of them
    assert len(opened(tmp_path)) == 6000
    assert index._graph.nearest(np.ones(D, np.float32), 5999).shape == (5999,)


def test_a_closed_index_leaves_new_vectors_to_whoever_opens_it_next(tmp_path: Path):
    index = opened(tmp_path)
    index.close()
    index.add(np.arange(100), random_rows(100))
    assert index._worker is None
    assert len(index.search(np.ones(D, np.float32), 100).keys) == 100


# Many threads


def test_a_vector_that_is_replaced_all_the_time_is_always_found_once(tmp_path: Path):
    rows = random_rows(1500)
    index = filled(tmp_path, rows)
    two, ended = random_rows(2, seed=9), threading.Event()

    def search(limit: int) -> int:
        count = 0
        while not ended.is_set() or not count:
            hits = index.search(two[0], limit, Allowed(np.array([7])))
            assert hits.keys.tolist() == [7]
            keys = index.search(two[0], limit).keys.tolist()
            assert len(set(keys)) == len(keys) == min(limit, 1500)
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        searches = [pool.submit(search, limit) for limit in (5, 1500)]
        try:
            for turn in range(400):
                index.add(np.array([7]), two[[turn % 2]])
            index.rebuild()
        finally:
            ended.set()
        assert all(search.result(60) for search in searches)


def test_everything_at_once_ends_where_it_should(tmp_path: Path, monkeypatch):
    """Changes, searches, saves, and graphs that are linked anew again and again."""
    monkeypatch.setattr(hnsw, "_REBUILT_FROM", 50)
    monkeypatch.setattr(hnsw, "_UNLINKED", 20)
    rng, rows = np.random.default_rng(4), random_rows(1000)
    index, ended = filled(tmp_path, rows[:700]), threading.Event()
    kept = dict.fromkeys(range(700))  # keys below 700 stay; of the others some are there

    def search(seed: int) -> int:
        queries, count = np.random.default_rng(seed), 0
        while not ended.is_set():
            key = int(queries.integers(700))
            hits = index.search(rows[key], 5)
            assert hits.keys[0] == key or hits.how.startswith("walked")  # a walk may miss it, a scan may not
            assert len({*hits.keys.tolist()}) == 5
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        searches = [pool.submit(search, seed) for seed in range(2)]
        try:
            for seq in range(1, 120):
                keys = rng.choice(1000, 30, replace=False)
                index.add(keys, rows[keys])
                kept |= dict.fromkeys(keys.tolist())
                gone = [key for key in rng.choice(np.arange(700, 1000), 20, replace=False).tolist() if key in kept]
                index.remove(np.array(gone, np.int64))
                kept = {key: None for key in kept if key not in gone}
                index.seq = seq
                if seq % 10 == 0:
                    index.save()
        finally:
            ended.set()
        assert all(each.result(60) for each in searches)
    assert settled(index).deleted <= 1000
    index.save()
    for each in (index, opened(tmp_path)):
        assert each.seq == 119
        assert each.keys().tolist() == sorted(kept)
        assert np.array_equal(each.stored(each.keys()), rows[sorted(kept)])
        assert {*each.search(rows[0], 1000).keys.tolist()} == kept.keys()


def test_searches_see_each_change_that_has_ended(tmp_path: Path):
    rows = random_rows(1500)
    index = filled(tmp_path, rows)
    with ThreadPoolExecutor(2) as pool:
        for key in range(100):
            pool.submit(index.remove, np.array([key])).result(60)
            assert key not in index.search(rows[key], 10).keys
            pool.submit(index.add, np.array([key + 5000]), rows[key : key + 1]).result(60)
            assert index.search(rows[key], 1).keys.tolist() == [key + 5000]
