"""What README and docstrings show is run."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from serve.cli import main
from serve.settings import read_configuration

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("engine", "operators", "graphs")
    for path in (ROOT / folder).rglob("*.py")
    if path.name not in ("__init__.py", "child.py") and "ray" not in path.parts
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_give_what_they_show(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder like the checkout, in which the README's commands run."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("docs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_the_commands_of_the_readme_run(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    commands = re.findall(r"^\.venv/bin/headrace (.+)$", README, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        endless = ["--help"] if command.startswith("serve") else []  # tests/serve/test_serve_command.py lets it serve
        result = CliRunner().invoke(main, [*shlex.split(command), *endless], catch_exceptions=False)
        assert result.exit_code == 0, (command, result.output)
        assert result.stdout.strip(), command


def test_the_python_of_the_readme_runs(workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    if not (workplace / "my-corpus").exists():
        CliRunner().invoke(main, ["ingest", "docs", "--corpus", "my-corpus"], catch_exceptions=False)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert "credit" in printed
    assert "['BRING', 'THE', 'WATER']" in printed


def test_the_configuration_of_the_readme_is_valid(tmp_path):
    block = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    file = tmp_path / "headrace.toml"
    file.write_text(block[1], encoding="utf-8")
    configuration = read_configuration(str(file))
    assert configuration.search.limit == 8
    assert configuration.reranker is not None


def test_the_example_runs(capsys):
    from examples.own_steps import main as example

    example("local")
    assert "turbine" in capsys.readouterr().out


def test_every_module_says_in_one_sentence_what_it_is():
    for name in MODULES:
        doc = importlib.import_module(name).__doc__
        assert doc, name
        assert doc.strip().splitlines()[0].endswith((".", ":")), name
