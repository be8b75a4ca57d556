"""Kills writers of a corpus, cuts their power, fails their disk, and compares what is left with what they had said.

    python -m tests.crashing --lives 300        kills at random moments, in four shards at once
    python -m tests.crashing --points all       a kill before every system call of a script, and inside its writes
    python -m tests.crashing --cuts all         a power cut after every system call of that script
    python -m tests.crashing --disks all        a full, a read-only and a broken disk from every system call of it on
    python -m tests.crashing --full FOLDER      a small file system, mounted there, that is full and then read-only

A number instead of "all" takes so many at random. Prints one JSON object, with the seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.crashing.disks import refusing_disks, small_file_system
from tests.crashing.lives import random_kills
from tests.crashing.preload import ROOT, Control, build, environment
from tests.crashing.script import Stage, kills_at_points, power_cuts

WATCHED = {"points": kills_at_points, "cuts": power_cuts, "disks": refusing_disks}


def main(arguments: Sequence[str]) -> None:
    """Does what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.crashing", usage=__doc__)
    parser.add_argument("--lives", type=int, default=0)
    parser.add_argument("--full", type=Path)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    for name in WATCHED:
        parser.add_argument(f"--{name}", type=_count, default=0)
    asked = parser.parse_args(arguments)
    figures: dict[str, Any] = {"seed": asked.seed}
    with tempfile.TemporaryDirectory(prefix="crashing-") as folder:
        if asked.lives:
            figures["lives"] = random_kills(Path(folder) / "corpus", asked.lives, asked.seed)
        if asked.full:
            figures["full"] = small_file_system(asked.full)
        counts = {name: getattr(asked, name) for name in WATCHED if getattr(asked, name) != 0}
        if counts:
            figures |= _watched(Path(folder), counts, asked.seed)
    sys.stdout.write(json.dumps(figures) + "\n")


def _watched(folder: Path, counts: dict[str, int | None], seed: int) -> dict[str, Any]:
    """Does what needs system calls to be watched: here, if they are, else in a process in which they are."""
    if ROOT in os.environ:
        stage = Stage(Path(os.environ[ROOT]))
        return {name: WATCHED[name](stage, count, random.Random(seed)) for name, count in counts.items()}
    library, root = build(folder), folder / "watched"
    if library is None:
        return dict.fromkeys(counts, "not done: there is no C compiler for preload.c")
    root.mkdir()
    around = environment(library, root=root, control=folder / "control", log=folder / "log")
    Control(folder / "control")
    asked = [f"--{name}={'all' if count is None else count}" for name, count in counts.items()]
    command = [sys.executable, "-m", "tests.crashing", f"--seed={seed}", *asked]
    run = subprocess.run(command, env=around, stdout=subprocess.PIPE, check=False)
    if run.returncode:
        raise SystemExit(run.returncode)  # it has said why
    return dict(json.loads(run.stdout))


def _count(text: str) -> int | None:
    return None if text == "all" else int(text)


if __name__ == "__main__":
    main(sys.argv[1:])
