import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.corpus.vector_table import BLOCK, VectorTable

D = 3


def numbers(*values: float) -> np.ndarray:
    """Vectors that are told apart by their first number, float32[N, D]."""
    return np.array([[value, 1, 2] for value in values], np.float32).reshape(-1, D)


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def first(vectors: np.ndarray) -> list[float]:
    return vectors[:, 0].tolist()


def test_a_replaced_vector_leaves_a_dead_row():
    table = VectorTable(D)
    assert [rows.tolist() for rows in table.put(keys(7, 8), numbers(70, 80))] == [[0, 1], []]
    assert [rows.tolist() for rows in table.put(keys(9, 7), numbers(90, 71))] == [[2, 3], [0]]
    assert table.drop(keys(8, 5)).tolist() == [1]
    assert (len(table), table.dead, table.rows) == (2, 2, 4)
    assert table.keys.tolist() == [-1, -1, 9, 7]
    assert table.living_keys().tolist() == [7, 9]
    assert table.rows_of(keys(9, 8, 7)).tolist() == [2, 3]
    assert first(table.vectors(keys(3, 2))) == [71, 90]


def test_a_negative_key_is_nobodys_not_even_a_dead_rows():
    table = VectorTable(D)
    table.put(np.arange(2000), np.ones((2000, D), np.float32))
    table.reserve(1)  # sorts the keys
    table.put(keys(0), numbers(1))  # its old row, the first of the sorted, is dead now
    assert table.rows_of(keys(-1)).tolist() == []
    assert table.drop(keys(-1, -1)).tolist() == []
    assert (len(table), table.dead) == (2000, 1)


def test_an_empty_table_holds_nothing():
    table = VectorTable(D)
    table.put(keys(), numbers())
    assert len(table) == 0
    assert table.vectors(table.rows_of(keys(1))).shape == (0, D)
    assert list(table.blocks(0)) == []
    assert list(table.blocks_of(keys())) == []


def test_a_reader_keeps_what_it_saw_while_the_table_grows():
    table = VectorTable(D)
    table.put(keys(1, 2), numbers(10, 20))
    seen = table.blocks(table.rows)
    table.put(keys(*range(100, 200)), numbers(*range(100, 200)))
    assert [first(block) for block in seen] == [[10, 20]]


@given(st.integers(0, 6), st.integers(0, 6), st.data())
def test_rows_from_elsewhere_and_own_rows_read_alike(lent, own, data):
    rows = numbers(*range(lent + own))
    table = VectorTable(D, np.arange(lent), rows[:lent].copy())
    table.put(np.arange(lent, lent + own), rows[lent:])
    for _ in range(2):
        chosen = np.array(data.draw(st.lists(st.integers(0, lent + own - 1) if lent + own else st.nothing())), np.int64)
        assert first(table.vectors(chosen)) == chosen.tolist()
        upto = data.draw(st.integers(0, lent + own))
        assert [value for block in table.blocks(upto) for value in first(block)] == list(range(upto))
        table.rebase(rows.copy())


@pytest.mark.parametrize("count", [BLOCK, BLOCK + 1])
def test_many_rows_come_a_block_at_a_time(count):
    table = VectorTable(D)
    table.put(np.arange(count), numbers(*range(count)))
    for blocks in (list(table.blocks(count)), list(table.blocks_of(np.arange(count)))):
        assert len(blocks) == -(-count // BLOCK)
        assert [value for block in blocks for value in first(block)] == list(range(count))
