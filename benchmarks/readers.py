"""Do eight readers of a shard notice that it is being written, and do they ever read what is no longer true?

Phases without and with a writer take turns. The writer replaces, adds and deletes documents at a steady rate, whether
or not the shard keeps up, and looks at once after each acknowledgement whether searches agree with it: by a word and by
a vector that only the new version has, and by those of the version before. Readers never pause.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import Collection
from benchmarks.report import Figure, emit, percentile
from benchmarks.sides import InProcess, filled
from operators.corpus.manifest import IndexConfig
from operators.corpus.shard import Shard
from operators.messages import EmbeddedDocument, Question, Settings
from operators.plan_question import plan_question

QUESTION = __doc__.splitlines()[0]
READERS = 8
COMMIT_EVERY_S = 30.0
SAME = 0.999  # cosine of a vector and itself, to rounding; two versions of a chunk are 0.64 apart


@dataclass
class Phase:
    """What happened in one stretch of time."""

    reads_ms: list[float] = field(default_factory=list)
    writes_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)  # how long after it was due a change began
    seconds: float = 0.0
    checks: int = 0
    stale: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Library:
    """What the shard should hold: the version of each document, and the documents that come next.

    Args:
        shard: The one that is written.
        collection: Its first documents, in version 0, which have no word of their own.
    """

    def __init__(self, shard: Shard, collection: Collection) -> None:
        self._shard, self._collection = shard, collection
        self._rng = np.random.default_rng([collection.seed, 8])
        self._version: dict[int, int] = dict.fromkeys(range(collection.documents), 0)
        self._added: list[int] = []
        self._changes = 0

    async def change(self, phase: Phase) -> None:
        """The next change: every second one replaces a document; the others add one, and delete the oldest of those."""
        kind = ("replace", "add", "replace", "delete")[self._changes % 4]
        self._changes += 1
        number = {"replace": self._any, "add": self._new, "delete": self._oldest}[kind]()
        before, after = self._version.get(number), None
        began = time.perf_counter()
        if kind == "delete":
            await self._shard.delete([self._collection.name(number)])
            del self._version[number]
        else:
            after = self._version[number] = (before or 0) + 1
            document = self._document(number, after)
            began = time.perf_counter()
            await self._shard.write([document], "given")
        phase.writes_ms.append((time.perf_counter() - began) * 1e3)
        await self._check(number, before, after, phase)

    def _any(self) -> int:
        return int(self._rng.integers(self._collection.documents))

    def _new(self) -> int:
        self._added.append(self._collection.documents + self._changes)
        return self._added[-1]

    def _oldest(self) -> int:
        return self._added.pop(0)

    def _document(self, number: int, version: int) -> EmbeddedDocument:
        return self._collection.document(number, version=version, extra=_word(number, version) if version else "")

    async def _check(self, number: int, before: int | None, after: int | None, phase: Phase) -> None:
        """Counts searches that contradict what was acknowledged; nobody else changes this document."""
        for version in {before, after} - {None}:
            document = self._document(number, version)
            expected = len(document.chunks) if version == after else 0
            found = {"vector": await self._by_vector(document)}
            if version:
                found["word"] = await self._by_word(document, _word(number, version))
            for how, count in found.items():
                phase.checks += 1
                wanted = min(1, expected) if how == "vector" else expected
                if count != wanted:
                    phase.stale.append(f"{document.document.id} v{version} by {how}: {count}, not {wanted}")

    async def _by_word(self, document: EmbeddedDocument, word: str) -> int:
        plan = plan_question(Question(word, Settings(legs={"lexical": 1.0})))
        passages = await self._shard.fetch(plan, document.vectors[0], await self._shard.lexical(plan, None))
        return sum(passage.text in {chunk.text for chunk in document.chunks} for passage in passages)

    async def _by_vector(self, document: EmbeddedDocument) -> int:
        plan = plan_question(Question("by vector alone", Settings(limit=1, candidates=10, legs={"dense": 1.0})))
        found = await self._shard.dense(plan, document.vectors[0])
        return int(np.count_nonzero(found.scores > SAME))


def _word(number: int, version: int) -> str:
    return f"zq{number}v{version}q"


class Bench:
    """Readers and a writer on one shard."""

    def __init__(self, shard: Shard, collection: Collection, *, rate_hz: float) -> None:
        self._shard, self._rate_hz = shard, rate_hz
        self._ours, self._library = InProcess(shard), Library(shard, collection)
        self._texts, self._vectors = collection.questions(500)

    async def phase(self, seconds: float, *, writing: bool) -> Phase:
        """Readers, and the writer or not, for so long."""
        phase, until = Phase(seconds=seconds), time.perf_counter() + seconds
        writer = [self._write(phase, until)] if writing else []
        await asyncio.gather(*(self._read(phase, until, n) for n in range(READERS)), *writer)
        return phase

    async def _read(self, phase: Phase, until: float, number: int) -> None:
        while (began := time.perf_counter()) < until:
            number = (number + READERS) % len(self._texts)
            if await _noted(self._ours.ask(self._texts[number], self._vectors[number]), phase):
                phase.reads_ms.append((time.perf_counter() - began) * 1e3)

    async def _write(self, phase: Phase, until: float) -> None:
        due = time.perf_counter()
        commit = due + COMMIT_EVERY_S
        while max(due, time.perf_counter()) < until:
            await asyncio.sleep(due - time.perf_counter())
            phase.late_ms.append((time.perf_counter() - due) * 1e3)
            await _noted(self._library.change(phase), phase)
            if due > commit:
                await _noted(self._shard.commit(), phase)
                commit += COMMIT_EVERY_S
            due += 1 / self._rate_hz


async def _noted(work: Awaitable[Any], phase: Phase) -> bool:
    """Whether the work was done; if not, the phase knows why."""
    (outcome,) = await asyncio.gather(work, return_exceptions=True)
    if isinstance(outcome, BaseException):
        phase.errors.append(repr(outcome))
    return not isinstance(outcome, BaseException)


async def measure(args: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """All figures, and the first of whatever went wrong."""
    collection = Collection(args.chunks, args.seed, chunks_each=5)
    alone, beside = [], []
    with tempfile.TemporaryDirectory() as folder:
        shard = await filled(Path(folder) / "corpus", collection, IndexConfig())
        bench = Bench(shard, collection, rate_hz=args.rate)
        await bench.phase(min(10.0, args.seconds / 5), writing=True)
        for run in range(args.runs):
            alone.append(await bench.phase(args.seconds / args.runs / 3, writing=False))
            beside.append(await bench.phase(args.seconds / args.runs, writing=True))
            print(f"phase {run + 1} of {args.runs}: {len(beside[-1].reads_ms)} reads", file=sys.stderr, flush=True)
        await shard.aclose()
    troubles = [trouble for phase in [*alone, *beside] for trouble in [*phase.errors, *phase.stale]]
    return list(figures(alone, beside)), troubles[:5]


def figures(alone: list[Phase], beside: list[Phase]) -> Iterator[Figure]:
    """Medians over the phases, ratios phase by phase, counts over all."""
    for name, count in (
        ("errors", sum(len(p.errors) for p in [*alone, *beside])),
        ("stale acknowledged reads", sum(len(p.stale) for p in beside)),
    ):
        yield Figure(name, count, "count", True, (count, count))
    checks, changes = sum(p.checks for p in beside), sum(len(p.writes_ms) for p in beside)
    yield Figure("acknowledged changes", changes, "count", False, (changes, changes))
    yield Figure("searches that checked them", checks, "count", False, (checks, checks))
    rates = [len(p.writes_ms) / p.seconds for p in beside]
    yield Figure.over_runs("changes", rates, "changes/s", lower_is_better=False)
    for name, phases in (("without", alone), ("with", beside)):
        reads = [len(p.reads_ms) / p.seconds for p in phases]
        yield Figure.over_runs(f"reads {name} a writer", reads, "reads/s", lower_is_better=False)
    for percent in (50, 99):
        without = [percentile(p.reads_ms, percent) for p in alone]
        with_one = [percentile(p.reads_ms, percent) for p in beside]
        yield Figure.over_runs(f"read p{percent} without a writer", without, "ms")
        yield Figure.over_runs(f"read p{percent} with a writer", with_one, "ms")
        ratios = [b / a for a, b in zip(without, with_one, strict=True)]
        yield Figure.over_runs(f"read p{percent} with a writer / without", ratios, "ratio")
        yield Figure.over_runs(f"change p{percent}", [percentile(p.writes_ms, percent) for p in beside], "ms")
        yield Figure.over_runs(f"change began late, p{percent}", [percentile(p.late_ms, percent) for p in beside], "ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=float, default=300.0, help="with a writer; a third more without")
    parser.add_argument("--chunks", type=int, default=20_000, help="in documents of five")
    parser.add_argument("--rate", type=float, default=10.0, help="changes of one document a second")
    parser.add_argument("--runs", type=int, default=5, help="phases of each kind")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    found, troubles = asyncio.run(measure(args))
    emit(
        QUESTION,
        found,
        seed=args.seed,
        warm_up="ten seconds with a writer",
        runs=f"{args.runs} phases of {args.seconds / args.runs:.0f} s with a writer, each after one without",
        as_json=args.json,
        packages=("hnswlib", "pyserini", "JPype1", "numpy"),
        notes=[
            f"{args.chunks:,} chunks of 384 dimensions, five a document; {READERS} readers in a closed loop, hybrid "
            f"top ten; {args.rate:g} changes/s: of four, two replace, one adds, one deletes; commit every 30 s",
            *troubles,
        ],
    )


if __name__ == "__main__":
    main()
