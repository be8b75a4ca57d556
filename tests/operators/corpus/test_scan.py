import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.corpus.allowed import Allowed
from operators.corpus.scan import best, compare
from operators.corpus.shared_lock import SharedLock
from operators.corpus.vector_table import BLOCK, VectorTable

HITS = st.lists(st.tuples(st.integers(-1, 30), st.integers(-3, 3)), max_size=40, unique_by=lambda hit: hit[0] + 0.5)


@given(HITS, st.integers(0, 50))
def test_the_best_are_those_that_sorting_puts_first(hits, limit):
    keys, scores = np.array([key for key, _ in hits], np.int64), np.array([score for _, score in hits], np.float32)
    expected = sorted(((k, s) for k, s in hits if k >= 0), key=lambda hit: (-hit[1], hit[0]))[:limit]
    found = best(keys, scores, limit)
    assert list(zip(*[column.tolist() for column in found], strict=True)) == expected


def test_a_score_that_is_no_number_comes_last():
    scores = np.array([np.nan, 1, -np.inf, 2], np.float32)
    assert best(np.arange(4), scores, 3)[0].tolist() == [3, 1, 2]
    assert best(np.arange(4), scores, 4)[0].tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize("allowed", [None, Allowed(np.arange(0, 3 * BLOCK, 2))], ids=["all", "some"])
def test_a_scan_sees_what_was_there_when_it_began(monkeypatch, allowed):
    """Changes come between its blocks; numbers grow with the key, so the best are the last."""
    count = 2 * BLOCK + 10
    table = VectorTable(1)
    table.put(np.arange(count), np.arange(count, dtype=np.float32)[:, None])
    whole = compare(table, np.ones(1, np.float32), 5, allowed, measure="ip", lock=SharedLock())
    monkeypatch.setattr(table, "blocks", lambda rows: changing(VectorTable.blocks(table, rows)))
    monkeypatch.setattr(table, "blocks_of", lambda rows: changing(VectorTable.blocks_of(table, rows)))
    coming = iter(range(count, 10 * count))

    def changing(blocks):
        for block in blocks:
            yield block
            table.drop(np.array([count - 2 - len(table) % 2]))
            table.put(np.array([next(coming), count - 4]), np.full((2, 1), 1e9, np.float32))

    again = compare(table, np.ones(1, np.float32), 5, allowed, measure="ip", lock=SharedLock())
    assert [again.keys.tolist(), again.scores.tolist()] == [whole.keys.tolist(), whole.scores.tolist()]
    assert table.dead
    after = compare(table, np.ones(1, np.float32), 5, allowed, measure="ip", lock=SharedLock())
    assert after.keys.tolist() != whole.keys.tolist()


def test_nothing_to_compare_gives_no_hits():
    for allowed in (None, Allowed(np.array([3]))):
        hits = compare(VectorTable(2), np.ones(2, np.float32), 5, allowed, measure="l2", lock=SharedLock())
        assert (hits.keys.tolist(), hits.scores.tolist()) == ([], [])
