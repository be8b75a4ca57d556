import numpy as np

from operators.corpus.exact import ExactIndex
from operators.corpus.manifest import CorpusConfig


def test_memory_of_what_was_replaced_or_removed_is_given_back():
    index = ExactIndex(CorpusConfig(embedder="test", dimension=4, measure="l1"))
    rows = np.random.default_rng(1).standard_normal((700, 4)).astype(np.float32)
    for _ in range(4):
        index.add(np.arange(700), rows)
        assert index.deleted <= 1_000
    index.remove(np.arange(1, 700))
    assert (len(index), index.keys().tolist()) == (1, [0])
    index.remove(np.arange(1))
    index.add(np.arange(700), rows)
    assert index.stored(np.arange(700)).tolist() == rows.tolist()
    assert index.search(rows[5], 1).keys.tolist() == [5]


def test_nothing_need_be_remembered_for_an_index_that_begins_anew(tmp_path):
    index = ExactIndex(CorpusConfig(embedder="test", dimension=4, measure="l1"))
    index.seq = 12
    index.save()
    assert index.saved_seq == 12
    assert list(tmp_path.iterdir()) == []
