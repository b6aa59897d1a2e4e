"""A list that is interrupted by Ctrl-C."""

from __future__ import annotations

import socket
import threading
from typing import Any, Callable

import pytest
from scripted import Scripted, busy, good

from modelless import Client, Retries, _drive

INPUT = b"\0\0\0\0"


def test_of_a_list_nothing_more_is_sent_and_nothing_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Scripted()
    arrived, interrupted = threading.Semaphore(0), threading.Event()

    def held(answer: Callable[[socket.socket], bool]) -> Callable[[socket.socket], bool]:
        def hold(connection: socket.socket) -> bool:
            arrived.release()
            interrupted.wait(30)
            return answer(connection)

        return hold

    def interrupt(*_: Any, **__: Any) -> Any:
        for _at in range(2):
            assert arrived.acquire(timeout=30)
        raise KeyboardInterrupt

    server.replies = [held(busy("1")), held(good())] + [good()] * 20
    monkeypatch.setattr(_drive, "wait", interrupt)
    with Client(server.url, at_once=2, retries=Retries(pause=0.0)) as client:
        client.tasks.get("t")
        before = set(threading.enumerate())
        try:
            with pytest.raises(KeyboardInterrupt):
                client.query("t", [INPUT] * 20, latency_ms=60_000)
            workers = [one for one in threading.enumerate() if one not in before and one.name.startswith("modelless")]
            assert workers, "it did not wait for them"
        finally:
            interrupted.set()
        for one in workers:
            one.join(30)
            assert not one.is_alive()
    assert len(server.queries()) == 2
    server.close()
