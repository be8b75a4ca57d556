from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from graphs import parts
from operators.corpus import jvm
from operators.corpus.manifest import open_corpus
from operators.corpus.store import Store
from serve import corpus_jobs
from tests.corpora import ingested
from tests.truth import truth_of

FILES = {
    "mill.md": "# The mill\n\nThe Alder Mill grinds rye. Ida Brandt built it.",
    "weir.md": "# The weir\n\nThe weir is made of granite and has a fish pass.",
    "note.txt": "A private note on rye bread.",
}


@pytest.fixture(scope="module", autouse=True)
def _shards_in_this_process():
    """A process with a Java machine for each shard of each command would take seconds; test_cli.py has some."""
    jvm.start()  # in the main thread, in which it is to end
    stage = parts.Stage
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parts, "Stage", lambda *args, isolated=False, **options: stage(*args, **options))
        yield


@pytest.fixture(scope="module")
def library(tmp_path_factory, _shards_in_this_process):
    """A corpus of two shards, to be read only."""
    folder = tmp_path_factory.mktemp("library") / "docs"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    ingested(folder.parent / "corpus", folder, shards=2)
    return folder.parent / "corpus"


@pytest.fixture
def corpus(library, tmp_path):
    """A copy that may be changed."""
    return shutil.copytree(library, tmp_path / "corpus")


def refused(result, *said):
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    for words in said:
        assert words in result.stderr


def told(result):
    """The JSON object that a command printed."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def ids(result):
    return [document["id"] for document in told(result)["documents"]]


def test_stats_tell_what_there_is_by_part_and_collection(headrace, corpus):
    assert headrace("collect", "old", "docs/mill.md", "docs/weir.md", "--corpus", corpus).exit_code == 0
    found = told(headrace("stats", "--corpus", corpus, "--json"))
    assert (found["documents"], found["chunks"], found["indexed_chunks"]) == (3, 3, 3)
    assert found["tokens"] == sum(shard["tokens"] for shard in found["shards"]) > 0
    assert found["size_bytes"]["texts"] == sum(len(text.encode()) for text in FILES.values())
    assert all(found["size_bytes"][part] > 0 for part in ("store", "dense", "lexical"))
    assert (found["collections"]["old"]["documents"], len(found["shards"])) == (2, 2)
    in_words = headrace("stats", "--corpus", corpus).stdout
    assert "documents    3" in in_words
    assert "collection   old: 2 documents, 2 chunks" in in_words


def test_documents_are_listed_filtered_changed_and_deleted(headrace, corpus):
    assert ids(headrace("list", "--json", "--corpus", corpus, "--scope", "docs/m")) == ["docs/mill.md"]
    changed = headrace("set", "docs/mill.md", "year=1890", 'tags=["a"]', "kind=mill", "--corpus", corpus)
    assert changed.exit_code == 0
    (mill,) = told(headrace("list", "--json", "--corpus", corpus, "--filter", '{"year": {"$lt": 1900}}'))["documents"]
    assert mill["metadata"] == {"year": 1890, "tags": ["a"], "kind": "mill"}
    chunks = ("list", "--chunks", "--json", "--corpus", corpus, "--filter")
    headrace("set", "docs/weir.md", "year=1890", "--corpus", corpus)
    (chunk,) = told(headrace(*chunks, '{"year": 1890, "document_id": "docs/mill.md"}'))["chunks"]
    assert chunk["chunk_id"] == "docs/mill.md#0"
    assert headrace("set", "docs/mill.md", "year=1891", "--replace", "--corpus", corpus).exit_code == 0
    listed = headrace("list", "--corpus", corpus, "--filter", '{"year": 1891, "kind": {"$exists": false}}')
    assert listed.stdout.startswith("docs/mill.md ")
    assert listed.stderr == "1 of 1 document\n"
    deleted = headrace("delete", "--filter", '{"year": 1891}', "--corpus", corpus)
    assert deleted.stdout == "1 document deleted, 1 chunk\n"
    partly = headrace("delete", "docs/note.txt", "docs/mill.md", "--corpus", corpus)
    assert (partly.exit_code, partly.stderr) == (1, "not there: docs/mill.md\n")
    assert ids(headrace("list", "--json", "--corpus", corpus)) == ["docs/weir.md"]


def test_chunks_are_listed_and_deleted(headrace, corpus):
    listed = headrace("list", "--chunks", "--corpus", corpus, "--limit", 1, "--offset", 1)
    assert listed.stdout.startswith("docs/note.txt#0  0-28")
    assert listed.stderr == "1 of 3 chunks\n"
    deleted = told(headrace("delete", "--chunks", "docs/note.txt#0", "--corpus", corpus, "--json"))
    assert deleted == {"documents": 1, "chunks": 1, "missing": []}


def test_a_chunk_gets_another_text(headrace, corpus):
    edited = headrace("edit", "docs/note.txt#0", "A public note on barley.", "--corpus", corpus)
    assert (edited.exit_code, edited.stdout) == (0, "")
    (passage,) = told(headrace("search", "barley", "--json", "--scope", "docs/note", "--corpus", corpus))["passages"]
    assert (passage["text"], passage["edited"]) == ("A public note on barley.", True)
    ann = headrace("edit", "docs/mill.md#0", "Mine.", "--user", "ann", "--corpus", corpus)
    refused(ann, "there is no chunk 'docs/mill.md#0'")  # she may not even know of it


def test_people_see_and_change_their_own(headrace, corpus):
    assert headrace("collect", "millers", "docs/mill.md", "--corpus", corpus).exit_code == 0
    ann = ("--user", "ann", "--group", "millers", "--corpus", corpus)
    assert ids(headrace("list", "--json", *ann)) == ["docs/mill.md"]
    found = told(headrace("search", "rye", "--json", *ann))
    assert {passage["document_id"] for passage in found["passages"]} == {"docs/mill.md"}
    denied = headrace("delete", "docs/mill.md", *ann)
    assert (denied.exit_code, "belongs to someone else" in denied.stderr) == (1, True)
    missing = headrace("delete", "docs/note.txt", *ann)
    assert (missing.exit_code, missing.stderr) == (1, "not there: docs/note.txt\n")
    refused(headrace("list", "--group", "millers", "--corpus", corpus), "--user")


def test_a_question_is_narrowed_by_options(headrace, library):
    def found(*options):
        passages = told(headrace("search", "rye", "--json", "--corpus", library, *options))["passages"]
        return [passage["document_id"] for passage in passages]

    everything = found()
    assert found("--filter", '{"id": {"$like": "%.txt"}}') == ["docs/note.txt"]
    assert found("--scope", "docs/w") == ["docs/weir.md"]
    assert found("--offset", 1, "--limit", 1) == everything[1:2]
    assert found("--threshold", 0.99) == []


def test_ask_takes_the_same_options(headrace, library):
    result = headrace("ask", "Who built the mill?", "--json", "--corpus", library, "--scope", "docs/weir")
    sources = told(result)["answer"]["sources"]
    assert {source["document_id"] for source in sources} <= {"docs/weir.md"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("list", "--filter", "{"), "--filter '{' is no JSON object"),
        (("search", "x", "--filter", "[1]"), "--filter '[1]' is no JSON object"),
        (("list", "--filter", '{"year": {"$near": 1}}'), "there is no operator '$near'"),
        (("search", "x", "--filter", '{"year": {"$near": 1}}'), "there is no operator '$near'"),
        (("delete", "--filter", '{"year": {"$near": 1}}'), "there is no operator '$near'"),
        (("delete",), "name either ids or --filter"),
        (("delete", "x", "--filter", "{}"), "name either ids or --filter"),
        (("delete", "--filter", "{}"), "does not let everything through"),
        (("set", "docs/mill.md"), "nothing to set"),
        (("set", "docs/mill.md", "year"), "'year' is no KEY=VALUE"),
        (("set", "docs/mill.md", "a=1", "a=2"), "'a' is given twice"),
        (("set", "docs/nothing.md", "a=1"), "there is no document 'docs/nothing.md'"),
        (("edit", "docs/mill.md#9", "x"), "there is no chunk 'docs/mill.md#9'; headrace list --chunks shows"),
        (("edit", "docs/mill.md", "x"), "'docs/mill.md' is no chunk's id"),
        (("edit", "docs/mill.md#0", " "), "new text is blank"),
        (("edit", "docs/mill.md#0", "\udcff"), "half a character"),
        (("edit", "\udcff#0", "x"), "half a character"),
        (("delete", "docs/\udcff.md"), "half a character"),
        (("delete", "--filter", '{"a": "\udcff"}'), "half a character"),
        (("list", "--scope", "docs/\udcff"), "half a character"),
        (("list", "--filter", '{"a": "\udcff"}'), "half a character"),
        (("set", "docs/\udcff.md", "a=1"), "half a character"),
        (("set", "docs/mill.md", "a=\udcff"), "half a character"),
        (("collect", "\udcff", "docs/mill.md"), "half a character"),
        (("collect", "old", "docs/\udcff.md"), "half a character"),
        (("search", "x", "--threshold", "nan"), "threshold"),
        (("search", "x", "--offset", "-1"), "offset"),
        (("import", "nowhere", "--index", "ef=3"), "no exported corpus"),
    ],
)
def test_mistakes_are_one_line(headrace, library, tmp_path, command, said):
    where = tmp_path / "new" if command[0] == "import" else library
    refused(headrace(*command, "--corpus", where), said)


def test_verify_finds_and_repairs(headrace, corpus):
    clean = headrace("verify", "--corpus", corpus)
    assert (clean.exit_code, clean.stdout) == (0, f"clean: 3 documents, 3 chunks in {corpus}\n")
    store = Store(open_corpus(corpus).shard_directory(0) / "store.sqlite")
    store.db.execute("INSERT INTO memberships VALUES ('ghosts', 77)")
    store.close()
    wrong = headrace("verify", "--corpus", corpus)
    assert wrong.exit_code == 1
    assert "shard 0, database: places in collections of no document: 1 (such as ghosts)" in wrong.stdout
    assert "headrace verify --repair" in wrong.stdout
    repaired = told(headrace("verify", "--repair", "--corpus", corpus, "--json"))
    assert repaired["clean"]
    assert repaired["shards"][0]["repaired"][0]["example"] == "ghosts"
    assert headrace("verify", "--corpus", corpus).exit_code == 0


def test_verify_tells_of_a_database_that_cannot_be_opened(headrace, corpus):
    path = open_corpus(corpus).shard_directory(1) / "store.sqlite"
    path.write_bytes(b"no database" * 1000)
    wrong = headrace("verify", "--corpus", corpus)
    assert wrong.exit_code == 1
    assert "shard 1, database: damage of the file: 1 (such as file is not a database); restore" in wrong.stdout


def test_verification_tells_how_far_it_is(library, monkeypatch):
    monkeypatch.setattr(corpus_jobs, "_ASK_EVERY_S", 0.0)
    shares: list[float] = []
    profile = parts.Profile(open_corpus(library))
    found = asyncio.run(corpus_jobs.verify_corpus(parts.Parts(profile), "local", tell=shares.append))
    assert found.clean
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    assert shares


def searched(headrace, corpus, question):
    """What a search finds, but for the plan."""
    return told(headrace("search", question, "--json", "--corpus", corpus))["passages"]


def test_an_exported_corpus_is_imported_with_other_shards_and_answers_alike(headrace, corpus, tmp_path):
    headrace("set", "docs/mill.md", "year=1890", "--corpus", corpus)
    exported = headrace("export", tmp_path / "export", "--corpus", corpus)
    assert exported.stdout == f"3 documents, 3 chunks -> {tmp_path / 'export'}\n"
    imported = headrace("import", tmp_path / "export", "--corpus", tmp_path / "new", "--shards", 1, "--index", "m=32")
    assert imported.exit_code == 0, imported.output
    made = open_corpus(tmp_path / "new")
    assert (made.config.shards, made.config.m) == (1, 32)
    assert truth_of(made) == truth_of(open_corpus(corpus))
    assert searched(headrace, tmp_path / "new", "granite") == searched(headrace, corpus, "granite")
    assert headrace("verify", "--corpus", tmp_path / "new").exit_code == 0
    again = headrace("import", tmp_path / "export", "--corpus", tmp_path / "new")
    refused(again, "is there already")


def test_a_corpus_becomes_a_json_collection(headrace, library, tmp_path):
    exported = headrace("export", tmp_path / "collection", "--format", "anserini", "--corpus", library)
    assert exported.exit_code == 0, exported.output
    lines = [line for file in (tmp_path / "collection").iterdir() for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == ["docs/mill.md#0", "docs/note.txt#0", "docs/weir.md#0"]


def test_a_backup_is_a_corpus_with_its_indexes(headrace, library, tmp_path):
    made = headrace("backup", tmp_path / "copy", "--corpus", library)
    assert (made.exit_code, made.stderr) == (0, "")
    assert searched(headrace, tmp_path / "copy", "granite") == searched(headrace, library, "granite")
    shards = told(headrace("stats", "--corpus", tmp_path / "copy", "--json"))["shards"]
    assert [shard["notes"] for shard in shards] == [[], []]
    refused(headrace("backup", tmp_path / "copy", "--corpus", library), "is there already")


def test_a_query_file_may_be_asked_for_someone(headrace, library, tmp_path):
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "rye"}\n')
    run = tmp_path / "out.trec"
    result = headrace("search", "--queries", queries, "--run", run, "--user", "bob", "--corpus", library)
    assert result.exit_code == 0, result.output
    assert run.read_text() == ""
