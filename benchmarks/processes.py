"""Sides of a benchmark in processes of their own, each with the environment that it needs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen
from typing import Any


@contextmanager
def processes(*commands: tuple[str, str]) -> Iterator[list[dict[str, Any]]]:
    """Modules that run inside the block, all started at once, and what each has told.

    Args:
        commands: Of each the module's name and its one argument. When it is ready it prints a JSON object; it ends with
            its standard input.

    Raises:
        RuntimeError: One ended before it was ready.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    running = [
        Popen([sys.executable, "-m", *command], stdin=PIPE, stdout=PIPE, env=environment) for command in commands
    ]
    try:
        yield [_told(child) for child in running]
    finally:
        for child in running:
            if child.stdin is not None:
                child.stdin.close()
            child.wait()


def _told(child: Popen[bytes]) -> dict[str, Any]:
    line = next((line for line in child.stdout or () if line.startswith(b"{")), None)
    if line is None:
        raise RuntimeError(f"{child.args!r} ended before it was ready")
    told: dict[str, Any] = json.loads(line)
    return told
