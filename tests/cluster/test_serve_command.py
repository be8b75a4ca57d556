"""`headrace serve` on Ray, beside the tests' own Ray: what listens where, and what is left when it is killed."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import httpx
import pytest

from serve.ray_serve import guard
from tests.corpora import ingested

_LISTENING = "0A"
LOOPBACK = "0100007F"  # as /proc/net/tcp writes 127.0.0.1


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The process, its URL and its folder; it is killed without a chance to clean up."""
    corpus = tmp_path_factory.mktemp("served") / "corpus"
    ingested(corpus)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-m", "serve.cli", "serve", "--corpus", str(corpus), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        url = re.search(r"http://\S+", _said(process, "http://"))[0]
        _said(process, "ready")
        folder = _folder_of(process.pid)
        yield url, folder
        process.send_signal(signal.SIGKILL)
        process.wait()
        _gone(folder)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _said(process: subprocess.Popen[str], what: str) -> str:
    """The next line that holds `what`; Ray may say things, too."""
    lines = []
    while what not in (line := process.stderr.readline()):
        lines.append(line)
        assert line, f"it ended before it said {what!r}: {''.join(lines)}"
    return line


def _folder_of(pid: int) -> str:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            line = (entry / "cmdline").read_bytes().split(b"\0")
            if b"serve.ray_serve.guard" in line and _parent(int(entry.name)) == pid:
                return line[-2].decode()
    raise AssertionError("nothing guards it")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _gone(folder: str) -> None:
    """The guard has ended all that it left, and its folder."""
    deadline = time.monotonic() + 30
    while (found := guard.of_folder(folder)) or Path(folder).exists():
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def _listeners(folder: str) -> list[tuple[bool, int]]:
    """Of each TCP port that its processes listen on: whether on loopback only, and which."""
    sockets = {
        os.readlink(link)
        for pid in guard.of_folder(folder)
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.is_symlink() and os.readlink(link).startswith("socket:")
    }
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[i] for i in (1, 3, 9))
            if state == _LISTENING and f"socket:[{inode}]" in sockets:
                address, _, port = local.partition(":")
                found.append((address == LOOPBACK, int(port, 16)))
    return found


def test_it_answers_questions(served):
    url, _ = served
    with httpx.Client(base_url=url, timeout=60) as client:
        body = {"question": {"text": "Who built the mill?"}}
        found = client.post("/v1/graphs/search", json=body).json()["result"]
        assert found["passages"][0]["document_id"] == "documents/mill.md"
        with client.stream("POST", "/v1/graphs/rag", json=body, headers={"accept": "text/event-stream"}) as response:
            text = response.read().decode()
    assert text.count("event: answer") == text.count("event: done") == 1


def test_what_other_machines_reach_answers_no_question_and_runs_nothing(served):
    from ray.serve._private.common import RequestMetadata
    from ray.serve.generated.serve_pb2 import ASGIRequest
    from ray.serve.generated.serve_pb2_grpc import ASGIServiceStub

    url, folder = served
    listeners = _listeners(folder)
    assert (True, int(url.rpartition(":")[2])) in listeners
    open_ports = [port for loopback, port in listeners if not loopback]
    assert open_ports  # Ray's own, which nothing binds to loopback
    metadata = RequestMetadata("", "", call_method="handle", _by_reference=False, _on_separate_loop=False)
    request = ASGIRequest(
        pickled_request_metadata=pickle.dumps(metadata),
        request_args=pickle.dumps(("statistics", b"")),
        request_kwargs=pickle.dumps({}),
    )
    for port in open_ports:
        try:
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/graphs/search", json={"question": {"text": "mill"}})
        except httpx.HTTPError:
            pass
        else:
            assert answer.status_code >= 400, port
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError):
            ASGIServiceStub(channel).HandleRequest(request, timeout=5)
