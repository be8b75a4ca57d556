"""What a check of a corpus finds wrong."""

from __future__ import annotations

from enum import Enum

import msgspec


class Remedy(Enum):
    """What helps, in words for people."""

    REMOVE = "headrace verify --repair removes them"
    REBUILD = "headrace verify --repair makes the indexes anew"
    INGEST = "delete the document and ingest it again, or restore the corpus from a backup"
    RESTORE = "restore the corpus from a backup"


REPAIRS = (Remedy.REMOVE, Remedy.REBUILD)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of thing that is wrong in a shard."""

    part: str  # "database", "dense", "lexical"
    what: str  # "chunks of no document"
    count: int
    example: str  # an id or a key of one of them, or what SQLite says
    remedy: str
    repairable: bool  # without anything from outside


class Findings:
    """What one check has found so far."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, part: str, what: str, example: object, remedy: Remedy, *, count: int = 1) -> None:
        """Notes `count` more of a kind; of one that was known already the first example stays."""
        known = self._found.get((part, what))
        if known is not None:
            self._found[part, what] = msgspec.structs.replace(known, count=known.count + count)
            return
        self._found[part, what] = Finding(
            part=part, what=what, count=count, example=str(example), remedy=remedy.value, repairable=remedy in REPAIRS
        )

    def all(self) -> tuple[Finding, ...]:
        """One entry a kind, in the order in which they were found."""
        return tuple(self._found.values())
