"""Ends what a run of Ray Serve left behind when its own process was killed: HAProxy outlives Ray, and holds its ports.

Run as `python -m serve.ray_serve.guard FOLDER`, with a pipe as standard input whose other end the guarded process
holds: when that ends, however it ends, so does the pipe.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 5.0  # Ray's own processes notice by themselves


@contextmanager
def guarded_folder() -> Iterator[Path]:
    """A folder for the files of one run; what names it ends with the block, or with this process if that is killed.

    Its path is short: names of Unix sockets have 107 bytes at most.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace", dir="/tmp"))
    command = [sys.executable, "-m", "serve.ray_serve.guard", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # its input ends with the block
        yield folder


def of_folder(folder: str) -> list[int]:
    """Processes whose command line or environment names the folder, without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
                text = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
                if folder.encode() in text:
                    found.append(int(entry.name))
    return found


def clean(folder: str) -> None:
    """Wait a while for what runs in the folder, end the rest, remove it."""
    deadline = time.monotonic() + _PATIENCE_S
    while of_folder(folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in of_folder(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the process that is guarded
    sys.stdin.buffer.read()
    clean(sys.argv[1])
