import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from operators.corpus.keys import chunk_key
from operators.corpus.merge import merge_passages, merge_rankings, merge_statistics
from operators.messages import Passage, Ranking, TermStatistics


def ranking(hits: list[tuple[int, float]], shard: int, limit: int) -> Ranking:
    """What a shard with those (key, score) pairs answers."""
    best = sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:limit]
    return Ranking(
        "dense",
        np.array([key for key, _ in best], np.int64),
        np.array([score for _, score in best], np.float32),
        np.full(len(best), shard, np.int32),
        limit=limit,
    )


def test_no_shards_make_an_empty_ranking() -> None:
    assert len(merge_rankings([]).keys) == 0
    assert len(merge_rankings([ranking([], 0, 3), ranking([], 1, 3)]).keys) == 0


def test_equal_scores_are_ordered_by_key_and_hits_remember_their_shard() -> None:
    merged = merge_rankings([ranking([(9, 0.5), (4, 0.2)], 0, 3), ranking([(2, 0.5), (7, 0.9)], 1, 3)])
    assert merged.keys.tolist() == [7, 2, 9]
    assert merged.shards.tolist() == [1, 1, 0]
    assert (merged.leg, merged.limit) == ("dense", 3)


def test_hits_are_cut_to_the_limit_even_when_no_shard_reached_it() -> None:
    assert len(merge_rankings([ranking([(1, 0.1), (2, 0.2)], 0, 3), ranking([(3, 0.1), (4, 0.2)], 1, 3)]).keys) == 3


@given(
    st.dictionaries(st.integers(0, 50), st.sampled_from([0.0, 0.25, 0.5])),
    st.integers(1, 5),
    st.integers(1, 20),
)
def test_any_number_of_shards_ranks_like_one(hits: dict[int, float], shards: int, limit: int) -> None:
    whole = ranking(list(hits.items()), 0, limit)
    parts = [ranking([(k, s) for k, s in hits.items() if k % shards == n], n, limit) for n in range(shards)]
    merged = merge_rankings(parts)
    assert merged.keys.tolist() == whole.keys.tolist()
    assert merged.scores.tolist() == whole.scores.tolist()


def test_statistics_add_up_field_by_field() -> None:
    one = TermStatistics({"text": 3}, {"text": 30}, {"text": {"fox": 2, "dog": 0}}, {"text": {"fox": 5, "dog": 0}})
    two = TermStatistics({"text": 1, "title": 1}, {"text": 4, "title": 2}, {"text": {"fox": 1}}, {"text": {"fox": 1}})
    merged = merge_statistics([one, two])
    assert merged.document_count == {"text": 4, "title": 1}
    assert merged.token_count == {"text": 34, "title": 2}
    assert merged.document_frequency == {"text": {"fox": 3, "dog": 0}}
    assert merged.term_frequency == {"text": {"fox": 6, "dog": 0}}
    assert merge_statistics([]) == TermStatistics({}, {}, {}, {})


def test_passages_come_back_in_the_rankings_order() -> None:
    def passage(document_id: str, score: float) -> Passage:
        return Passage(
            chunk_id=f"{document_id}#0", document_id=document_id, title="", text="", start=0, end=0, score=score
        )

    tied = sorted(["a", "b", "c#1"], key=lambda name: chunk_key(name, 0))
    merged = merge_passages(
        [[passage("top", 2.0), passage(tied[2], 1.0)], [passage(tied[1], 1.0), passage(tied[0], 1.0)]]
    )
    assert [p.document_id for p in merged] == ["top", *tied]
    assert merge_passages([]) == []
