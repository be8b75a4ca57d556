from hypothesis import given
from hypothesis import strategies as st

from operators.corpus.keys import chunk_id, chunk_key, key_of_chunk_id, shard_of

ids = st.text(st.characters(codec="utf-8"), min_size=1)


def test_keys_and_places_never_change() -> None:
    """They are on people's disks."""
    assert chunk_key("guide.md", 0) == 8884488563002481179
    assert chunk_key("指南", 12) == 5912097301800745501
    assert [shard_of(f"doc-{n}", 5) for n in range(8)] == [0, 0, 0, 1, 3, 2, 0, 4]


@given(ids, st.integers(0, 10**9))
def test_a_key_has_63_bits_and_is_found_from_the_name(document_id: str, ordinal: int) -> None:
    key = chunk_key(document_id, ordinal)
    assert 0 <= key < 2**63
    assert key_of_chunk_id(chunk_id(document_id, ordinal)) == key


def test_documents_spread_evenly() -> None:
    placed = [shard_of(f"doc-{n}", 4) for n in range(4000)]
    assert all(900 < placed.count(shard) < 1100 for shard in range(4))
