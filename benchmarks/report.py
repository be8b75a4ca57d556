"""One form for every benchmark's result: figures with their spread, and what they were measured on."""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

_LOAD_BEFORE = os.getloadavg()[0]  # read at import, before the benchmark adds its own


class Figure(msgspec.Struct, frozen=True):
    """One measured number; `spread` is its smallest and largest value over the runs."""

    name: str
    value: float
    unit: str
    lower_is_better: bool
    spread: tuple[float, float]

    @classmethod
    def over_runs(cls, name: str, values: Sequence[float], unit: str, *, lower_is_better: bool = True) -> Figure:
        """The median of one value per run, rounded to four digits."""
        low, middle, high = (float(f"{x:.4g}") for x in (min(values), statistics.median(values), max(values)))
        return cls(name, middle, unit, lower_is_better, (low, high))


def against_others(
    seen: Mapping[str, Mapping[str, Sequence[float]]], units: Mapping[str, tuple[str, bool]]
) -> list[Figure]:
    """Medians of all sides for each test, and headrace's ratios to each of the others, round by round.

    Args:
        seen: By side ("headrace" and others) and test, one value a round.
        units: By a part of a test's name (the first that is in it counts), the unit and whether lower is better.
    """
    out = []
    for test, ours in seen["headrace"].items():
        unit, lower = next(found for part, found in units.items() if part in test)
        out += [Figure.over_runs(f"{side}: {test}", s[test], unit, lower_is_better=lower) for side, s in seen.items()]
        for side in seen:
            if side != "headrace":
                ratio = [a / b for a, b in zip(ours, seen[side][test], strict=True)]
                out.append(Figure.over_runs(f"headrace / {side}: {test}", ratio, "ratio", lower_is_better=lower))
    return out


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` (0 to 100) of them lie, interpolated as numpy does by default."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    return below + (above - below) * (position % 1)


def hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, accelerators, and how busy it was before."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    tool = shutil.which("nvidia-smi")
    query = [tool, "--query-gpu=name", "--format=csv,noheader"] if tool else ["true"]
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "accelerators": subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines(),
        "system": platform.platform(),
        "load_1min": round(_LOAD_BEFORE, 2),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the named distributions."""
    return {"python": platform.python_version(), **{package: metadata.version(package) for package in packages}}


def emit(
    question: str,
    figures: Sequence[Figure],
    *,
    seed: int,
    warm_up: str,
    runs: str,
    as_json: bool,
    packages: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Print the result: one JSON object, or a table for people."""
    report = {
        "question": question,
        "command": " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "versions": versions(*packages),
        "hardware": hardware(),
        "seed": seed,
        "warm_up": warm_up,
        "runs": runs,
        "notes": list(notes),
        "figures": list(figures),
    }
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=1).decode())
        return
    print(question)
    width = max((len(figure.name) for figure in figures), default=0)
    for figure in figures:
        low, high = figure.spread
        print(f"  {figure.name:<{width}}  {figure.value:>10.4g} {figure.unit:<8} ({low:.4g} to {high:.4g})")
    for note in notes:
        print(f"  {note}")
