"""A real server for all tests: `modelless up --demo`, started once, or the one that MODELLESS_SERVER names."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

import modelless

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "examples/fashion/pictures"


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where it listens."""
    given = os.environ.get("MODELLESS_SERVER")
    if given:
        yield given
        return
    binary = os.environ.get("MODELLESS_BIN")
    assert binary, "name a `modelless` in MODELLESS_BIN, or a server in MODELLESS_SERVER"
    data = tmp_path_factory.mktemp("data")
    command = [binary, "up", "--demo", "--data", str(data), "--http", "127.0.0.1:0"]
    with open(data / "errors.txt", "wb") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert server.stdout is not None
        # Its output ends when it does, so this ends in any case.
        ready = next((line for line in server.stdout if line.startswith("ready http")), None)
        assert ready, f"it ended before it was ready: {(data / 'errors.txt').read_text()}"
        yield ready.split()[1]
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        finally:
            server.kill()  # nothing happens where it has ended


@pytest.fixture
def client(url: str) -> Iterator[modelless.Client]:
    """A client of that server."""
    with modelless.Client(url) as client:
        yield client


@pytest.fixture
def boot() -> Path:
    """A picture of an ankle boot."""
    return PICTURES / "boot.png"
