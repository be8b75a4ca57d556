import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from operators.corpus.allowed import Allowed
from operators.corpus.jar import recorded_hash, source_hash
from operators.corpus.lexical import MAX_TERMS, LexicalIndex, fingerprints
from operators.corpus.manifest import CorpusConfig
from operators.corpus.merge import merge_statistics

CONFIG = CorpusConfig(embedder="test", dimension=2)


class Texts:
    """A lexical index whose documents have one chunk each, under small keys."""

    def __init__(self, folder: Path, config: CorpusConfig = CONFIG) -> None:
        self.index = LexicalIndex(folder, config, writable=True)

    def put(self, *documents: tuple[int, str, str]) -> None:
        for key, title, text in documents:
            self.index.add(f"document {key}", [key], [title], [text])
        self.index.refresh()

    def search(self, question: str, limit: int = 10, allowed: list[int] | None = None) -> dict[int, float]:
        terms = list(self.index.terms(question))
        only = None if allowed is None else Allowed(np.array(sorted(allowed), np.int64))
        keys, scores = self.index.search(question, self.index.statistics(terms), limit, only)
        assert (keys.dtype, scores.dtype) == (np.int64, np.float32)
        return dict(zip(keys.tolist(), scores.tolist(), strict=True))


@pytest.fixture
def texts(tmp_path: Path) -> Iterator[Texts]:
    made = Texts(tmp_path / "lexical")
    yield made
    made.index.close()


def test_scores_are_bm25_by_hand(texts: Texts) -> None:
    """Robertson and Zaragoza 2009, equation 3.15, with Lucene's idf and without its factor k1 + 1."""
    texts.put((1, "", "fox fox dog"), (2, "", "fox"), (3, "", "dog dog cat bird"))
    average, k1, b = 8 / 3, 1.2, 0.75

    def bm25(occurrences: int, documents: int, length: int) -> float:
        idf = math.log(1 + (3 - documents + 0.5) / (documents + 0.5))
        return idf * occurrences / (occurrences + k1 * (1 - b + b * length / average))

    found = texts.search("fox bird")
    assert found == pytest.approx({3: bm25(1, 1, 4), 2: bm25(1, 2, 1), 1: bm25(2, 2, 3)}, rel=1e-6)
    assert texts.search("fox fox")[2] == pytest.approx(2 * bm25(1, 2, 1), rel=1e-6)


def test_the_title_counts_by_its_boost(tmp_path: Path) -> None:
    config = CorpusConfig(embedder="test", dimension=2, title_boost=3.0)
    texts = Texts(tmp_path, config)
    texts.put((1, "fox", "nothing here"), (2, "nothing here", "fox"), (3, "dog", "dog"))
    found = texts.search("fox")
    texts.index.close()
    assert found[1] == pytest.approx(3 * found[2])


def test_a_boost_of_zero_leaves_the_field_out(tmp_path: Path) -> None:
    texts = Texts(tmp_path, CorpusConfig(embedder="test", dimension=2, title_boost=0.0))
    texts.put((1, "fox", "dog"))
    assert (texts.search("fox"), list(texts.search("dog"))) == ({}, [1])
    texts.index.close()


@pytest.mark.parametrize("question", ["", "   ", "the of and", '(("', "AND OR NOT", "\u2028", "?*~^:\\/", "a\0b"])
def test_a_question_without_terms_of_the_corpus_finds_nothing(texts: Texts, question: str) -> None:
    assert texts.search(question) == {}
    texts.put((1, "", "some words"))
    assert texts.search(question) == {}


def test_of_a_very_long_question_the_rarest_terms_count(texts: Texts) -> None:
    words = [f"w{n}" for n in range(MAX_TERMS + 50)]
    texts.put((1, "", " ".join(words)), (2, "", " ".join(words[:60])), (3, "", " ".join(words[:50])))
    assert list(texts.search(" ".join(words)))[:1] == [1]
    assert 3 not in texts.search(" ".join(words)), "its terms are the most frequent, and there are enough rarer ones"


def test_equal_scores_come_in_the_order_of_their_keys_also_at_the_cut(texts: Texts) -> None:
    texts.put(*((key, "", "the same words") for key in (9, 2**62, 4, 7, 1)))
    assert list(texts.search("words", limit=3)) == [1, 4, 7]


def test_a_filter_is_kept_and_changes_no_score(texts: Texts) -> None:
    texts.put(*((key, "", f"fox number {key}") for key in range(30)))
    everything = texts.search("fox", limit=30)
    assert texts.search("fox", limit=30, allowed=[5, 21, 99]) == {5: everything[5], 21: everything[21]}
    assert texts.search("fox", allowed=[]) == {}
    assert texts.search("fox", limit=0) == {}


def test_a_document_put_again_takes_its_old_place(texts: Texts) -> None:
    texts.put((1, "", "old words"), (2, "", "other"))
    texts.put((1, "", "new words"))
    assert (texts.search("old"), list(texts.search("new")), len(texts.index)) == ({}, [1], 2)
    texts.index.remove("document 1")
    texts.index.remove("never there")
    texts.index.refresh()
    assert (texts.search("new"), len(texts.index)) == ({}, 1)


def test_what_was_removed_weighs_on_no_score(texts: Texts, tmp_path: Path) -> None:
    documents = [(n, f"title {n % 3}", "fox " * (n % 4) + "dog " * (n % 5)) for n in range(40)]
    texts.put(*((key, "old title fox", "old fox dog cat") for key, _, _ in documents))
    texts.put((99, "gone fox", "fox"))
    texts.put(*documents)
    texts.index.remove("document 99")
    texts.index.refresh()
    fresh = Texts(tmp_path / "fresh")
    fresh.put(*documents)
    terms = ["fox", "dog", "cat", "titl"]
    assert texts.index.statistics(terms) == fresh.index.statistics(terms)
    assert texts.search("fox dog title", limit=40) == fresh.search("fox dog title", limit=40)
    fresh.index.close()


def test_parts_with_common_statistics_score_like_the_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    words = [f"word{n}" for n in range(60)]
    documents = [
        (n, " ".join(rng.choice(words, 2)), " ".join(rng.choice(words, rng.integers(1, 80)))) for n in range(300)
    ]
    whole, parts = Texts(tmp_path / "whole"), [Texts(tmp_path / str(n)) for n in range(3)]
    whole.put(*documents)
    for n, part in enumerate(parts):
        part.put(*documents[n::3])
    for question in ("word1 word2 word3 word3", "word59", "word7 absent"):
        terms = whole.index.terms(question)
        statistics = merge_statistics([part.index.statistics(list(terms)) for part in parts])
        assert statistics == whole.index.statistics(list(terms))
        merged: dict[int, float] = {}
        for part in parts:
            keys, scores = part.index.search(question, statistics, 300)
            merged |= dict(zip(keys.tolist(), scores.tolist(), strict=True))
        assert merged == whole.search(question, limit=300)
    for each in (whole, *parts):
        each.index.close()


def test_what_was_committed_is_there_again_and_the_rest_is_not(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    texts.put((1, "", "kept"))
    texts.index.commit(41)
    texts.put((2, "", "lost"))
    texts.index.close()
    again = Texts(tmp_path)
    assert (again.index.seq, list(again.search("kept")), again.search("lost")) == (41, [1], {})
    again.index.close()


def test_a_reader_sees_each_commit(tmp_path: Path) -> None:
    writing, reading = Texts(tmp_path), LexicalIndex(tmp_path, CONFIG, writable=False)
    assert (len(reading), reading.seq, reading.statistics(["x"]).document_count) == (0, 0, {})
    for seq in (1, 2):
        writing.put((seq, "", "words"))
        reading.refresh()
        assert len(reading) == seq - 1
        writing.index.commit(seq)
        reading.refresh()
        assert (len(reading), reading.seq) == (seq, seq)
    reading.close()
    writing.index.close()


@pytest.mark.parametrize("harm", ["cut", "missing"])
def test_a_damaged_index_is_noticed_and_begun_anew(tmp_path: Path, harm: str) -> None:
    texts = Texts(tmp_path)
    texts.put((1, "", "words"))
    texts.index.commit(5)
    texts.index.close()
    victim = next(tmp_path.glob("segments_*" if harm == "cut" else "_0.cf*"))
    victim.write_bytes(victim.read_bytes()[:20]) if harm == "cut" else victim.unlink()
    again = LexicalIndex(tmp_path, CONFIG, writable=True)
    assert (again.seq, len(again)) == (0, 0)
    assert "damaged" in again.note
    again.close()


def test_an_index_of_another_analysis_is_begun_anew(tmp_path: Path) -> None:
    other = CorpusConfig(embedder="test", dimension=2, analyzer="anserini-english")
    texts = Texts(tmp_path, other)
    texts.put((1, "", "words"))
    texts.index.commit(5)
    texts.index.close()
    reading = LexicalIndex(tmp_path, CONFIG, writable=False)
    assert (reading.seq, len(reading)) == (0, 0)
    again = LexicalIndex(tmp_path, CONFIG, writable=True)
    assert (again.seq, len(again), again.note) == (0, 0, "the lexical index was made with another analysis of texts")
    again.add("document 2", [2], [""], ["new"])
    again.commit(6)
    reading.refresh()
    assert (reading.seq, reading.keys().tolist()) == (6, [2])
    again.close()
    reading.close()


def test_keys_and_fingerprints_are_those_of_the_living_chunks(texts: Texts) -> None:
    assert (texts.index.keys().tolist(), [len(column) for column in texts.index.prints()]) == ([], [0, 0])
    texts.put((5, "title", "text"), (2**62, "", "other"), (3, "", "gone"), (1, "", "old"))
    texts.put((1, "", "new"))
    texts.index.remove("document 3")
    texts.index.refresh()
    assert texts.index.keys().tolist() == [1, 5, 2**62]
    keys, prints = texts.index.prints()
    assert keys.tolist() == [1, 5, 2**62]
    assert prints.tolist() == fingerprints(["", "title", ""], ["new", "text", "other"]).tolist()


def test_fingerprints_tell_title_from_text() -> None:
    prints = fingerprints(["ab", "a", "", "ab"], ["c", "bc", "abc", "c"])
    assert (prints.dtype, prints[0], len(set(prints.tolist()))) == (np.int64, prints[3], 3)
    assert fingerprints([], []).tolist() == []


def test_a_cleared_index_is_empty_and_has_followed_nothing(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    texts.put((1, "", "words"))
    texts.index.commit(5)
    texts.index.clear()
    texts.index.refresh()
    assert (texts.index.seq, len(texts.index), texts.search("words")) == (0, 0, {})
    texts.put((2, "", "words"))
    texts.index.commit(6)
    texts.index.close()
    again = Texts(tmp_path)
    assert (again.index.seq, list(again.search("words"))) == (6, [2])
    again.index.close()


def test_after_the_disk_refused_the_index_begins_again_from_its_last_commit(tmp_path: Path) -> None:
    texts = Texts(tmp_path / "lexical")
    texts.put((1, "", "kept"))
    texts.index.commit(5)
    texts.put((2, "", "lost"))
    away = (tmp_path / "lexical").rename(tmp_path / "away")
    with pytest.raises(OSError, match="lexical"):
        for _ in range(2):  # the first may be the writer's own failure, the next one finds it closed
            texts.put((3, "", "refused"))
            texts.index.commit(6)
    away.rename(tmp_path / "lexical")
    assert texts.index.broken
    texts.index.reopen()
    assert (texts.index.broken, texts.index.seq) == (False, 5)
    texts.put((3, "", "words"))
    assert (list(texts.search("kept words")), texts.search("lost")) == ([1, 3], {})
    texts.index.close()


def test_the_corpus_is_this_shard_when_no_statistics_are_given(texts: Texts) -> None:
    texts.put((1, "fox", "dog"), (2, "", "fox fox"), (3, "", "bird"))
    question = "fox bird absent"
    given = texts.index.search(question, texts.index.statistics(list(texts.index.terms(question))), 10)
    alone = texts.index.search(question, None, 10)
    assert [column.tolist() for column in given] == [column.tolist() for column in alone]


@pytest.mark.parametrize("limit", [1, 7, 100, 1000])
def test_the_best_are_the_head_of_all_with_or_without_a_filter_and_deletions(texts: Texts, limit: int) -> None:
    rng = np.random.default_rng(8)
    words = ["fox", "dog", "cat", "bird"]
    keys = rng.choice(2**62, 400, replace=False).tolist()
    texts.put(*((key, "", " ".join(rng.choice(words, 3))) for key in keys[:300]))
    texts.put(*((key, "", " ".join(rng.choice(words, 3))) for key in keys[200:]))  # a hundred of them once more
    for key in keys[::10]:
        texts.index.remove(f"document {key}")
    texts.index.refresh()
    everything = texts.search("fox dog", limit=1000)
    assert list(everything.items()) == sorted(everything.items(), key=lambda hit: (-hit[1], hit[0]))
    assert list(texts.search("fox dog", limit).items()) == list(everything.items())[:limit]
    for some in (keys[:3], keys[::2], keys):
        allowed = {key: score for key, score in everything.items() if key in set(some)}
        assert list(texts.search("fox dog", limit, some).items()) == list(allowed.items())[:limit]


def test_one_filter_serves_many_questions_while_the_index_changes(texts: Texts) -> None:
    allowed = Allowed(np.array([2, 3, 5], np.int64))

    def found() -> list[int]:
        return texts.index.search("fox", None, 10, allowed)[0].tolist()

    texts.put(*((key, "", "fox") for key in range(4)))
    assert found() == [2, 3]
    texts.put((5, "", "fox"), (6, "", "fox"))
    assert found() == [2, 3, 5]
    texts.put((3, "", "dog"))
    assert found() == [2, 5]
    for _ in range(20):  # filters of other questions do not push it out for good
        texts.search("fox", allowed=[1])
    assert found() == [2, 5]


def test_the_jar_was_built_from_these_sources() -> None:
    assert recorded_hash() == source_hash()


def test_anserinis_analyzer_can_be_chosen(tmp_path: Path) -> None:
    texts = Texts(tmp_path, CorpusConfig(embedder="test", dimension=2, analyzer="anserini-english"))
    assert texts.index.terms("The foxes' running, Café 北京") == {"fox": 1, "run": 1, "café": 1, "北": 1, "京": 1}
    texts.index.close()


def test_a_chunk_that_is_put_twice_before_a_refresh_passes_a_small_filter(texts: Texts) -> None:
    texts.index._writer.getConfig().setMergePolicy(texts.index._lucene("index.NoMergePolicy").INSTANCE)
    for _ in range(2):  # as when following failed half way and was repeated, and the segment is too large to be merged
        for key in range(9):
            texts.index.add(f"document {key}", [key], [""], ["fox"])
    texts.index.refresh()
    assert [list(texts.search("fox", allowed=[key])) for key in range(9)] == [[key] for key in range(9)]
