"""A stretch of a document on its way to becoming a chunk."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """Where a chunk starts and ends in code points, what places it, which section (counted from 0) it belongs to."""

    start: int
    end: int
    context: str = ""
    section: int = 0
