from pathlib import Path

import numpy as np
import pytest

from operators.corpus.graph import Graph
from operators.corpus.manifest import CorpusConfig

D = 16
RNG = np.random.default_rng(3)


def config(**options) -> CorpusConfig:
    return CorpusConfig(**{"embedder": "test", "dimension": D, "measure": "l2"} | options)


def random_rows(count: int) -> np.ndarray:
    return RNG.standard_normal((count, D)).astype(np.float32)


def put(graph: Graph, keys: np.ndarray, vectors: np.ndarray) -> None:
    graph.put(keys, vectors)
    graph.link(len(keys))


def found(graph: Graph, query: np.ndarray, ef: int) -> list[int]:
    return graph.table.keys[graph.nearest(query, ef)].tolist()


def test_the_nearest_come_first():
    graph, vectors = Graph(config()), random_rows(50)
    assert found(graph, vectors[0], 5) == []
    put(graph, np.arange(100, 150), vectors)
    distances = ((vectors - vectors[7]) ** 2).sum(axis=1)
    assert found(graph, vectors[7], 5) == (100 + np.argsort(distances)[:5]).tolist()
    assert sorted(found(graph, vectors[7], 80)) == list(range(100, 150))  # all, when there are fewer


def test_what_is_not_linked_yet_is_not_met(tmp_path: Path):
    graph, vectors = Graph(config()), random_rows(10)
    put(graph, np.arange(5), vectors[:5])
    graph.put(np.arange(4, 10), vectors[4:])  # 4 again
    assert graph.unlinked.tolist() == [5, 6, 7, 8, 9, 10]
    assert sorted(found(graph, vectors[7], 20)) == [0, 1, 2, 3]
    graph.drop(np.array([0, 6]))  # one that is linked, one that is not
    graph.link(4)
    assert sorted(found(graph, vectors[7], 20)) == [1, 2, 3, 4, 5, 7]
    graph.link(100)
    graph.link(100)
    assert len(graph.unlinked) == 0
    graph.save(tmp_path / "graph")
    for each in (graph, Graph(config(), keys=graph.table.keys, file=tmp_path / "graph")):
        assert sorted(found(each, vectors[7], 20)) == [1, 2, 3, 4, 5, 7, 8, 9]


def test_a_graph_grows_beyond_its_first_room():
    graph, vectors = Graph(config()), random_rows(3000)
    for start in range(0, 3000, 500):
        put(graph, np.arange(start, start + 500), vectors[start : start + 500])
    assert found(graph, vectors[2999], 1) == [2999]


def test_what_was_replaced_or_dropped_is_not_found_again(tmp_path: Path):
    graph, vectors = Graph(config()), random_rows(40)
    put(graph, np.arange(40), vectors)
    other = random_rows(1) + 10
    put(graph, np.array([5]), other)
    assert graph.drop(np.array([6, 99])) == 1
    graph.save(tmp_path / "graph")
    reopened = Graph(config(), keys=graph.table.keys, file=tmp_path / "graph")
    for each in (graph, reopened):
        assert sorted(found(each, vectors[5], 40)) == [key for key in range(40) if key != 6]
        assert found(each, other[0], 1) == [5]
        assert each.table.vectors(each.table.rows_of(np.array([5]))).tolist() == other.tolist()
        put(each, np.array([6]), vectors[6:7] + 1)
        assert found(each, vectors[6] + 1, 1) == [6]
        each.drop(np.arange(40))
        assert found(each, vectors[6], 3) == []
        put(each, np.array([1]), vectors[1:2])  # beside nothing but dead ones
        assert found(each, vectors[30], 3) == [1]


@pytest.mark.parametrize("m", [2, 5, 16, 48])
def test_vectors_are_read_from_the_file_where_they_were_saved(tmp_path: Path, m: int):
    graph, vectors = Graph(config(m=m)), random_rows(300)
    put(graph, np.arange(300), vectors)
    graph.save(tmp_path / "graph")
    assert (tmp_path / "graph").stat().st_size == graph.size_bytes
    graph.lean_on(tmp_path / "graph")
    (tmp_path / "graph").unlink()  # as the next save does
    graph.put(np.array([300]), vectors[:1])
    assert np.array_equal(graph.table.vectors(np.arange(301)), vectors[[*range(300), 0]])


@pytest.mark.parametrize(
    ("options", "keys"), [({"dimension": D + 1}, 20), ({"m": 8}, 20), ({}, 19)], ids=["dimension", "links", "count"]
)
def test_a_file_of_another_graph_is_refused(tmp_path: Path, options: dict, keys: int):
    graph = Graph(config())
    put(graph, np.arange(20), random_rows(20))
    graph.save(tmp_path / "graph")
    with pytest.raises(ValueError, match="graph holds no"):
        Graph(config(**options), keys=np.arange(keys), file=tmp_path / "graph")


def test_a_file_whose_rows_are_in_another_order_is_refused(tmp_path: Path):
    graph = Graph(config())
    graph._links.add_items(random_rows(2), np.array([1, 0]), num_threads=1)
    assert graph.table.rows == 0
    graph.save(tmp_path / "graph")
    with pytest.raises(ValueError, match="another order"):
        Graph(config(), keys=np.arange(2), file=tmp_path / "graph")


def test_a_torn_file_is_refused(tmp_path: Path):
    (tmp_path / "graph").write_bytes(b"short")
    with pytest.raises(ValueError, match="holds no"):
        Graph(config(), keys=np.arange(2), file=tmp_path / "graph")
