from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from operators.models.model_files import model_folder
from operators.trec import read_run
from tests.corpora import DOCUMENTS, ROOT


def refused(result, *said: str) -> None:
    """The command ended with one line of advice and exit code 2."""
    assert result.exit_code == 2, result.output
    for words in said:
        assert words in result.stderr
    assert "Traceback" not in result.output


def test_ask_prints_the_answer_and_its_sources(headrace, corpus):
    result = headrace("ask", "Who built the Alder Mill?", "--corpus", corpus, "--trace")
    assert result.exit_code == 0
    assert "Ida Brandt" in result.stdout
    assert "[1] documents/mill.md:" in result.stdout
    assert "engine overhead" in result.stderr


def test_ask_as_json_gives_one_object(headrace, corpus):
    result = headrace("ask", "Who built the Alder Mill?", "--corpus", corpus, "--json")
    found = json.loads(result.stdout)
    assert found["answer"]["finish_reason"] == "stop"
    assert found["answer"]["citations"][0]["document_id"] == "documents/mill.md"
    assert len(found["graph"]) == 16


def test_search_prints_passages_with_ranks(headrace, corpus):
    result = headrace("search", "fish pass", "--corpus", corpus, "--limit", 2, "--legs", "dense=2,lexical=1")
    assert result.exit_code == 0
    assert result.stdout.startswith("  1. ")
    assert "documents/mill.md" in result.stdout
    as_json = headrace("search", "fish pass", "--corpus", corpus, "--limit", 2, "--json")
    assert len(json.loads(as_json.stdout)["passages"]) == 2


def test_a_query_file_becomes_a_trec_run(headrace, corpus, tmp_path):
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "Who built the mill?"}\n{"_id": "q2", "text": "holidays"}\n')
    result = headrace("search", "--queries", queries, "--run", tmp_path / "out.trec", "--corpus", corpus)
    assert result.exit_code == 0, result.stderr
    run = read_run(tmp_path / "out.trec")
    assert run["q1"][0] == "documents/mill.md"
    assert run["q2"][0] == "documents/handbook.txt"


def test_a_run_that_cannot_be_written_is_refused_before_anything_is_searched(headrace, corpus, tmp_path):
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "mill"}\n')
    for run in (tmp_path / "nowhere" / "out.trec", tmp_path):
        refused(headrace("search", "--queries", queries, "--run", run, "--corpus", corpus), "--run", str(run))


@pytest.mark.parametrize("graph", ["ingest", "search", "rag"])
def test_explain_draws_each_graph(headrace, corpus, graph):
    assert "hops one after another" in headrace("explain", graph, "--corpus", corpus).stdout
    assert headrace("explain", graph, "--corpus", corpus, "--dot").stdout.startswith(f'digraph "{graph}"')


def test_explain_says_whether_there_is_a_reranker(headrace, corpus, tmp_path):
    assert "no rerank step" in headrace("explain", "rag", "--corpus", corpus).stdout
    config = tmp_path / "headrace.toml"
    config.write_text('[reranker]\nmodel = "some/cross-encoder"\n')
    text = headrace("explain", "rag", "--corpus", corpus, "--config", config).stdout
    assert "no rerank step" not in text
    assert "[on reranker, may be run twice]" in text


def test_stats_counts_what_is_there(headrace, corpus):
    result = headrace("stats", "--corpus", corpus)
    assert result.exit_code == 0
    assert "documents    3" in result.stdout
    assert json.loads(headrace("stats", "--corpus", corpus, "--json").stdout)["documents"] == 3


def test_ingest_tells_what_it_skipped_and_why(headrace, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "good.md").write_text("# Good\n\nThe weir is made of granite.")
    (folder / "photo.bin").write_bytes(b"\x00\x01\x02" * 100)
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 this is no pdf")
    (folder / "empty.txt").write_text("")
    with (folder / "line.txt").open("wb") as file:
        file.write(b"word " * 20 * 2**20)  # 100 MB in one line
    result = headrace("ingest", folder, "--corpus", tmp_path / "corpus")
    assert result.exit_code == 0, result.stderr
    assert "1 added" in result.stdout
    for name in ("photo.bin", "broken.pdf", "line.txt", "empty.txt"):
        assert f"skipped {folder / name}" in result.stderr.replace("\n", " ").replace("  ", " ")


def test_a_beir_folder_becomes_a_document_a_line(headrace, tmp_path):
    folder = tmp_path / "beir"
    folder.mkdir()
    lines = [{"_id": f"d{i}", "title": f"Title {i}", "text": f"Text number {i} about weirs."} for i in range(3)]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(line) for line in [*lines]) + "\nno json\n")
    result = headrace("ingest", folder, "--corpus", tmp_path / "corpus", "--json")
    report = json.loads(result.stdout)
    assert (report["added"], len(report["skipped"])) == (3, 1)
    assert "corpus.jsonl:4" in report["skipped"][0]["path"]


def test_an_empty_question_is_refused(headrace, corpus):
    refused(headrace("ask", "  ", "--corpus", corpus), "empty")
    refused(headrace("search", "", "--corpus", corpus), "question")


def test_a_folder_without_anything_to_read_is_refused(headrace, tmp_path):
    refused(headrace("ingest", tmp_path, "--corpus", tmp_path / "corpus"), str(tmp_path))
    assert not (tmp_path / "corpus").exists()


def test_a_path_that_does_not_exist_is_refused(headrace, tmp_path):
    refused(headrace("ingest", tmp_path / "nowhere", "--corpus", tmp_path / "corpus"), "nowhere")
    assert not (tmp_path / "corpus").exists()


def test_a_corpus_that_does_not_exist_is_refused(headrace, tmp_path):
    for command in (("ask", "why?"), ("search", "why?"), ("stats",), ("explain", "rag")):
        refused(headrace(*command, "--corpus", tmp_path / "nowhere"), "nowhere", "ingest")


def test_a_corpus_made_with_another_embedder_is_refused(headrace, corpus, tmp_path):
    other = tmp_path / "other-model"
    other.mkdir()
    for path in model_folder("packaged").iterdir():
        (other / path.name).symlink_to(path)
    tokenizer = other / "tokenizer_config.json"
    text = tokenizer.read_text()
    tokenizer.unlink()
    tokenizer.write_text(text + "\n")  # one byte more is another model
    config = tmp_path / "headrace.toml"
    config.write_text(f'[embedder]\nmodel = "{other}"\n')
    refused(headrace("ask", "why?", "--corpus", corpus, "--config", config), "was made with the embedder")
    refused(headrace("ingest", DOCUMENTS, "--corpus", corpus, "--config", config), "was made with the embedder")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[embedder]\nmodle = "x"\n', ["modle", "max_batch_tokens"]),
        ("[serch]\nlimit = 3\n", ["serch", "search"]),
        ("[search]\nlimit = 'three'\n", ["limit"]),
        ("[chunks]\nsize = 10\noverlap = 10\n", ["overlap"]),
        ('[generator]\nkind = "oracle"\n', ["oracle", "extractive, llamacpp, openai, vllm"]),
        ('[generator]\nkind = "llamacpp"\nmodle = "x"\n', ["modle", "slots"]),
        ("[corpus\n", ["no TOML"]),
    ],
)
def test_a_wrong_configuration_is_refused_with_what_there_is(headrace, corpus, tmp_path, text, said):
    config = tmp_path / "headrace.toml"
    config.write_text(text)
    refused(headrace("ask", "why?", "--corpus", corpus, "--config", config), *said)


@pytest.mark.parametrize(
    "text",
    [
        '[generator]\nkind = "llamacpp"\nmodel = "/nowhere/model.gguf"\n',
        '[embedder]\nmodel = "/nowhere/model"\n',
        '[reranker]\nmodel = "/nowhere/model"\n',
    ],
)
def test_a_model_path_that_does_not_exist_is_refused(headrace, corpus, tmp_path, text):
    config = tmp_path / "headrace.toml"
    config.write_text(text)
    refused(headrace("ask", "why?", "--corpus", corpus, "--config", config), "/nowhere/model")


def test_wrong_legs_are_refused(headrace, corpus):
    refused(headrace("search", "x", "--corpus", corpus, "--legs", "dense=much"), "much")
    refused(headrace("search", "x", "--corpus", corpus, "--legs", "psychic"), "psychic", "dense, lexical")


def test_ctrl_c_stops_a_streaming_answer(corpus, tmp_path):
    config = tmp_path / "headrace.toml"
    config.write_text('[generator]\nkind = "llamacpp"\n[search]\nlimit = 1\nmax_answer_tokens = 2000\n')
    command = [sys.executable, "-m", "serve.cli", "ask", "Tell a long story.", "--corpus", corpus, "--config", config]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as asking:
        assert asking.stdout is not None
        assert asking.stdout.read(10)  # it streams
        asking.send_signal(signal.SIGINT)
        _, errors = asking.communicate(timeout=60)
    assert asking.returncode == 130
    assert b"stopped" in errors
    assert b"Traceback" not in errors


def test_the_four_packages_load_from_this_checkout():
    import engine
    import graphs
    import operators
    import serve

    for package in (engine, operators, graphs, serve):
        assert Path(package.__file__).parents[1] == ROOT
