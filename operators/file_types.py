"""The kinds of files that are read, by the ends of their names."""

from __future__ import annotations

from pathlib import PurePath

PROSE = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".txt": "text/plain",
    ".text": "text/plain",
    ".log": "text/plain",
    ".rst": "text/prs.fallenstein.rst",
    ".tex": "application/x-tex",
}
"""Text that is read as it is, for people."""

ROWS = {".csv": "text/csv", ".tsv": "text/tab-separated-values"}
"""Tables, read as they are."""

DATA = {".json": "application/json", ".jsonl": "application/jsonl", ".ndjson": "application/jsonl"}

CONVERTED = {
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "text/html",
    ".pdf": "application/pdf",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
"""What is turned into Markdown."""

_SOURCE = (
    "py pyi js mjs cjs jsx ts tsx java kt kts scala groovy c h cc cpp cxx hh hpp cs go rs swift m mm rb php pl pm lua "
    "r jl dart ex exs erl hs ml clj lisp el f90 sh bash zsh fish ps1 bat sql graphql proto yaml yml toml ini cfg conf "
    "env properties xml xsd css scss less vue svelte tf cmake gradle mk dockerfile makefile"
)
SOURCE = {f".{suffix}": f"text/x-{suffix}" for suffix in _SOURCE.split()} | {
    ".py": "text/x-python",
    ".xml": "application/xml",
    ".yml": "text/x-yaml",
}
"""Source code and configuration, read as it is."""

_KNOWN = PROSE | ROWS | DATA | CONVERTED | SOURCE
_NAMED = {"dockerfile": "text/x-dockerfile", "makefile": "text/x-makefile"}  # files whose whole name says it

KINDS = "Markdown, text, reStructuredText, HTML, PDF, Word, PowerPoint, Excel, CSV, JSON, and source code"
"""The kinds in words, for messages."""


def media_type(name: str) -> str:
    """The media type of a file by its name; plain text if the name tells nothing.

    Example:
        >>> media_type("docs/Guide.MD"), media_type("Makefile"), media_type("LICENSE")
        ('text/markdown', 'text/x-makefile', 'text/plain')
    """
    path = PurePath(name)
    return _KNOWN.get(path.suffix.lower()) or _NAMED.get(path.name.lower(), "text/plain")


def is_converted(name: str) -> bool:
    """Whether a converter has to turn the file into text."""
    return PurePath(name).suffix.lower() in CONVERTED


def is_source(name: str) -> bool:
    """Whether the file is code, configuration or data rather than prose."""
    kind = media_type(name)
    return kind.startswith("text/x-") or kind in DATA.values() or kind == "application/xml"
