"""What a type checker sees of the public face: a mis-wired edge is red before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

HEAD = """
from collections.abc import AsyncIterator

from engine.graph import graph
from engine.run import run
from engine.stage import Stage
from engine.step import step
from engine.stream import Stream


class Index:
    async def find(self, word: str) -> list[int]:
        return []

    async def tell(self, hits: list[int]) -> AsyncIterator[str]:
        yield ""


index = Stage("index", Index)
find, tell = index.step(Index.find), index.step(Index.tell)


@step
def word(text: str) -> str:
    return text
"""

GOOD = """
@graph
def told(text: str) -> Stream[str]:
    return tell(find(word(text)))


with run(told) as ask:
    for item in ask("river"):
        length: int = len(item.upper())
"""

BAD = """
@graph
def told(text: str) -> Stream[int]:
    return tell(word(text))


with run(told) as ask:
    ask(3)
"""


def checked(folder: Path, code: str) -> str:
    file = folder / "snippet.py"
    file.write_text(HEAD + code, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_a_well_wired_graph_is_clean(tmp_path):
    assert "Success" in checked(tmp_path, GOOD)


def test_wrong_edges_results_and_inputs_are_red(tmp_path):
    said = checked(tmp_path, BAD)
    assert 'has incompatible type "str"; expected "list[int]"' in said
    assert "Incompatible return value type" in said
    assert 'has incompatible type "int"; expected "str"' in said
