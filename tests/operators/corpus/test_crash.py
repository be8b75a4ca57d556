"""What was acknowledged survives: kills, power cuts and refusing disks, by tests/crashing; a sample in each run.

Every case, and hundreds of kills: `python -m tests.crashing --lives 300 --points all --cuts all --disks all`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MOUNTED = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=6m none "$0" && exec "$@"']  # seen by it alone


def crashing(*arguments: str, before: list[str] | None = None) -> dict[str, Any]:
    """What `python -m tests.crashing` says; its failure is the test's, with the seed that repeats it."""
    command = [*(before or []), sys.executable, "-m", "tests.crashing", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout}{run.stderr}"
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def watched() -> dict[str, Any]:
    """What is done with system calls watched by tests/crashing/preload.c, in one go."""
    said = crashing("--points=2", "--cuts=6", "--disks=8", "--seed=5")
    if isinstance(said["points"], str):
        pytest.skip(said["points"])
    return said


def test_a_writer_killed_at_random_moments_loses_nothing_and_leaves_nothing_half_done() -> None:
    said = crashing("--lives=8")["lives"]
    assert said["kills"] == 8
    assert said["operations"] > 0


def test_a_writer_killed_between_any_two_system_calls_or_inside_a_write_loses_nothing(watched) -> None:
    assert watched["points"]["kills"] == 2


def test_what_is_acknowledged_is_synced_so_that_a_power_cut_loses_nothing(watched) -> None:
    assert watched["cuts"]["states"] == 24


def test_a_disk_that_refuses_loses_nothing_and_the_writer_works_on_when_it_refuses_no_more(watched) -> None:
    assert watched["disks"]["disks"] == 10  # two more, whose disk fails to sync the first change
    assert watched["disks"]["in_doubt_and_found_again"] >= 1


def test_a_file_system_that_is_full_and_then_read_only_says_so_and_loses_nothing(tmp_path: Path) -> None:
    if os.geteuid() or subprocess.run([*MOUNTED, str(tmp_path), "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    said = crashing("--full", str(tmp_path), before=[*MOUNTED, str(tmp_path)])["full"]
    assert "the disk refused" in said["refusal"]
    assert said["documents_when_full"] > 100
    assert said["read_only_for_writing"] != "opened"
