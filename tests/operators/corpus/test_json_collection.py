import json
from pathlib import Path

import pytest

from engine.errors import InvalidInput
from operators.corpus import json_collection
from operators.corpus.json_collection import write_json_collection
from operators.messages import ChunkInfo


def chunk(document_id: str, ordinal: int, text: str, context: str = "", title: str = "") -> ChunkInfo:
    return ChunkInfo(
        chunk_id=f"{document_id}#{ordinal}", document_id=document_id, title=title,
        version=1, ordinal=ordinal, parent=None, start=0, end=len(text), context=context, text=text, tokens=0,
        edited=False, metadata={}, owner="", collections=(),
    )  # fmt: skip


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_each_chunk_is_a_line_with_all_that_is_to_be_found_in_its_contents(tmp_path: Path) -> None:
    chunks = [chunk("a.md", 0, "One\u2028line\nmore", "Part 1", "Title"), chunk("水.md", 3, "text")]
    assert write_json_collection(iter(chunks), tmp_path / "new" / "folder") == 2
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["docs00.jsonl"]
    assert lines(tmp_path / "new" / "folder" / "docs00.jsonl") == [
        {"id": "a.md#0", "title": "Title", "contents": "Title\nPart 1\nOne\u2028line\nmore"},
        {"id": "水.md#3", "title": "", "contents": "text"},
    ]


def test_many_chunks_go_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_collection, "CHUNKS_A_FILE", 3)
    assert write_json_collection((chunk("a", n, "x") for n in range(7)), tmp_path) == 7
    written = {path.name: [line["id"] for line in lines(path)] for path in sorted(tmp_path.iterdir())}
    assert written == {
        "docs00.jsonl": ["a#0", "a#1", "a#2"],
        "docs01.jsonl": ["a#3", "a#4", "a#5"],
        "docs02.jsonl": ["a#6"],
    }


def test_no_chunks_are_an_empty_folder(tmp_path: Path) -> None:
    assert write_json_collection([], tmp_path / "empty") == 0
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docs07.jsonl").touch()
    with pytest.raises(InvalidInput, match=r"docs07.jsonl is there\); choose another folder"):
        write_json_collection([], tmp_path)
    with pytest.raises(InvalidInput, match="cannot write"):
        write_json_collection([], tmp_path / "docs07.jsonl" / "below")
