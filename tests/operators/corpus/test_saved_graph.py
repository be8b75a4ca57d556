import json
import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from operators.corpus import graph, saved_graph
from operators.corpus.hnsw import DenseIndex
from operators.corpus.manifest import CorpusConfig

D = 16


def config(**options) -> CorpusConfig:
    return CorpusConfig(**{"embedder": "test", "dimension": D} | options)


def rows(count: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)


def saved(folder: Path, count: int = 20, seq: int = 3) -> DenseIndex:
    folder.mkdir(exist_ok=True)
    index = DenseIndex(folder, config())
    index.add(np.arange(count), rows(count))
    index.seq = seq
    index.save()
    return index


def state(index: DenseIndex) -> tuple:
    """What there is to compare of two indexes."""
    query = rows(1, seed=9)[0]
    return index.seq, index.keys().tolist(), index.stored(index.keys()).tolist(), index.search(query, 30)[1].tolist()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_there_again(tmp_path: Path):
    index = saved(tmp_path, 200, seq=0)
    index.remove(np.arange(50))
    index.add(np.array([60]), rows(1, seed=8))
    index.seq = 17
    index.save()
    again = DenseIndex(tmp_path, config())
    assert (again.seq, again.saved_seq, len(again), again.deleted, again.note) == (17, 17, 150, 51, "")
    assert state(again) == state(index)
    again.add(np.array([61, 900]), rows(2, seed=6))
    index.add(np.array([61, 900]), rows(2, seed=6))
    again.seq = index.seq = 18
    again.save()
    assert state(DenseIndex(tmp_path, config())) == state(index)


def test_an_index_that_was_never_saved_is_empty(tmp_path: Path):
    index = DenseIndex(tmp_path, config())
    assert (index.seq, index.saved_seq, len(index), index.note) == (0, 0, 0, "")
    index.save()
    assert names(tmp_path) == []


def test_a_small_change_to_a_large_index_is_not_worth_saving_before_it_is_closed(tmp_path: Path):
    index = saved(tmp_path, 1000, seq=1)
    index.add(np.array([5000]), rows(1))
    for seq in range(2, 11):
        index.seq = seq
        index.save()
    assert (index.saved_seq, names(tmp_path)) == (1, ["dense-1.hnsw", "dense.json"])
    index.save(closing=True)
    assert index.saved_seq == 1  # not even then: it is followed in a millisecond
    index.remove(np.array([7]))
    index.save(closing=True)
    assert (index.saved_seq, names(tmp_path)) == (10, ["dense-10.hnsw", "dense.json"])
    index.remove(np.arange(100, 109))
    index.save()
    assert index.saved_seq == 10
    index.remove(np.arange(110, 112))
    index.save()
    assert names(tmp_path) == ["dense-10-1.hnsw", "dense.json"]  # the graph changed though the number did not


def test_files_of_saves_that_were_cut_off_are_removed_by_the_next(tmp_path: Path):
    for name in ("dense-2.hnsw", "dense-3.hnsw.unfinished", "dense.json.unfinished"):
        (tmp_path / name).touch()
    saved(tmp_path)
    assert names(tmp_path) == ["dense-3.hnsw", "dense.json"]


def rewrite(file: Path, data: bytes) -> None:
    """Replaces a file: others may have the old one mapped."""
    file.unlink()
    file.write_bytes(data)


HARM = {
    "torn": lambda file: rewrite(file, file.read_bytes()[:-100]),
    "flipped": lambda file: rewrite(file, file.read_bytes()[:200] + b"x" + file.read_bytes()[201:]),
    "empty": lambda file: rewrite(file, b""),
    "missing": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_a_damaged_graph_is_noticed_and_made_anew(tmp_path: Path, harm):
    index = saved(tmp_path)
    harm(tmp_path / "dense-3.hnsw")
    again = DenseIndex(tmp_path, config())
    assert (again.seq, again.saved_seq, len(again)) == (0, 0, 0)
    assert "dense-3.hnsw" in again.note
    again.add(np.arange(20), rows(20))
    again.seq = 4
    again.save()
    assert state(DenseIndex(tmp_path, config()))[1:] == state(index)[1:]


@pytest.mark.parametrize(
    "description",
    [
        "",
        "{",
        "[]",
        '{"seq":3,"file":"dense-3.hnsw","size_bytes":1,"crc32":2,"deleted":[]}',
    ],  # the last by headrace 0.1
    ids=["empty", "torn", "other", "older"],
)
def test_a_description_that_cannot_be_read_is_noticed(tmp_path: Path, description: str):
    saved(tmp_path)
    (tmp_path / "dense.json").write_text(description)
    again = DenseIndex(tmp_path, config())
    assert (again.seq, len(again)) == (0, 0)
    assert again.note.startswith("the saved dense index cannot be used")


def test_keys_that_do_not_belong_to_the_graph_are_noticed(tmp_path: Path):
    saved(tmp_path)
    description = json.loads((tmp_path / "dense.json").read_text())
    description["keys"] = "A" + description["keys"][1:-4] + "AAAA"
    (tmp_path / "dense.json").write_text(json.dumps(description | {"keys": description["keys"].replace("B", "C")}))
    assert "is damaged" in DenseIndex(tmp_path, config()).note


@pytest.mark.parametrize("options", [{"dimension": 17}, {"m": 8}, {"dimension": 8}])
def test_a_graph_of_another_corpus_is_noticed(tmp_path: Path, options: dict):
    saved(tmp_path)
    again = DenseIndex(tmp_path, config(**options))
    assert (again.seq, len(again)) == (0, 0)
    assert "holds no 20 vectors" in again.note
    dimension = again._config.dimension
    again.add(np.arange(3), np.ones((3, dimension), np.float32))
    assert len(again.search(np.ones(dimension, np.float32), 5).keys) == 3


@pytest.mark.parametrize(("module", "read"), [(saved_graph, "_load"), (saved_graph, "_checksum"), (graph, "_vectors")])
def test_whoever_opens_while_the_writer_saves_gets_one_of_the_two(tmp_path: Path, monkeypatch, module, read: str):
    index = saved(tmp_path)
    index.add(np.array([77]), rows(1))
    index.seq = 4
    original = getattr(module, read)

    def between(*arguments):
        monkeypatch.setattr(module, read, original)
        if read == "_vectors":  # after it hnswlib opens the file, and says of one that is gone only that it cannot
            vectors = original(*arguments)
            index.save()
            return vectors
        index.save()
        return original(*arguments)

    monkeypatch.setattr(module, read, between)
    again = DenseIndex(tmp_path, config())
    assert (again.note, again.seq, len(again)) == ("", 4, 21)


@contextmanager
def room(size_bytes: int):
    """No file may become larger."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size_bytes", [0, 1000, 8200, 20_000])
def test_a_disk_without_room_keeps_what_was_saved_before(tmp_path: Path, size_bytes: int):
    index = saved(tmp_path)
    before = state(index)
    index.add(np.arange(20, 300), rows(280, seed=8))
    index.seq = 5
    with room(size_bytes), pytest.raises(OSError, match=r"File too large|No space left"):
        index.save()
    assert (index.saved_seq, names(tmp_path)) == (3, ["dense-3.hnsw", "dense.json"])
    assert state(DenseIndex(tmp_path, config())) == before
    index.save()
    assert index.saved_seq == 5
    assert state(DenseIndex(tmp_path, config())) == state(index)


def test_a_first_save_without_room_leaves_nothing(tmp_path: Path):
    index = DenseIndex(tmp_path, config())
    index.add(np.arange(300), rows(300))
    with room(8200), pytest.raises(OSError, match=r"File too large|No space left"):
        index.save()
    assert names(tmp_path) == []


def test_a_folder_that_is_gone_is_an_error_of_the_system(tmp_path: Path):
    index = DenseIndex(tmp_path / "gone", config())
    index.add(np.arange(3), rows(3))
    with pytest.raises(OSError, match="gone"):
        index.save()
