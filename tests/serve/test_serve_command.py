"""`headrace serve` in a process of its own: it answers on loopback, tells what is wrong, and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.corpora import ingested


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "corpus"
    ingested(folder)
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "serve.cli", "serve", *arguments]


LOCAL = ("--engine", "local")  # on Ray: tests/cluster/test_serve_command.py


@contextmanager
def serving(corpus) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    process = subprocess.Popen(
        command(*LOCAL, "--corpus", str(corpus), "--port", "0"), stderr=subprocess.PIPE, text=True
    )
    try:
        url = re.search(r"http://\S+", process.stderr.readline())[0]
        with httpx.Client(base_url=url, timeout=60) as client:
            while "ready" not in (line := process.stderr.readline()):
                assert line, "it ended before it was ready"
            yield process, client
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def test_it_answers_on_loopback_and_ends_when_told_with_all_its_processes(corpus):
    with serving(corpus) as (process, client):
        assert client.base_url.host == "127.0.0.1"
        body = {"question": {"text": "Who built the mill?"}}
        found = client.post("/v1/graphs/search", json=body).json()["result"]
        assert found["passages"][0]["document_id"] == "documents/mill.md"
        answer = client.post("/v1/graphs/rag", json=body).json()["result"]
        assert answer["citations"][0]["document_id"] == "documents/mill.md"
        with client.stream("POST", "/v1/graphs/rag", json=body, headers={"accept": "text/event-stream"}) as response:
            text = response.read().decode()
        assert text.count("event: answer") == text.count("event: done") == 1
        wrong = client.post("/v1/graphs/search", json={"question": {"text": " "}})
        assert (wrong.status_code, wrong.json()["message"]) == (400, "the question is empty; ask something")
        started = children(process.pid)
        assert started
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        for pid in started:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_port_that_is_taken_is_told_in_a_sentence(corpus, engine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        run = subprocess.run(
            command("--engine", engine, "--corpus", str(corpus), "--port", port),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 2
    assert f"nobody can listen on 127.0.0.1 port {port}" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_corpus_that_is_not_there_is_told_before_anything_listens(tmp_path):
    run = subprocess.run(
        command("--corpus", str(tmp_path / "none")), capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 2
    assert "starting" not in run.stderr
