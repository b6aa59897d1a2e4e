"""How long what may take, by a clock that is only reckoned."""

from __future__ import annotations

from typing import Any

import pytest
from pretend import ANSWERED, TOLD, Pretend

from modelless import Goals, Overloaded, Retries, Timeout, Unreachable, _jobs
from modelless._core import Core, How
from modelless._effects import Reply, Send
from modelless._retry import Budget

INPUT = b"\0\0\0\0"


def core() -> Core:
    return Core(Budget(Retries(pause=0.0)), 16)


def query(goals: Goals, how: How = How()) -> Any:
    return core().query("t", INPUT, goals, {}, how)


def takes(pretend: Pretend, send: Send, seconds: float) -> None:
    """So long, or no longer than the client waits."""
    pretend.now += min(seconds, send.timeout)
    if seconds > send.timeout:
        raise Timeout("no answer came")


def test_who_takes_it_late_is_waited_for_as_long_as_a_server_keeps_it() -> None:
    def serve(pretend: Pretend, send: Send) -> Reply:
        if send.method == "GET":
            return TOLD
        takes(pretend, send, 34.0)  # 30 s beyond its bound, as a gateway keeps it, and the way
        return ANSWERED

    for given in (Goals(latency_ms=100, fallback="best_effort"), Goals(fallback="best_effort")):
        assert Pretend(serve).run(query(given)).numpy().tolist() == [1.0]
    for given in (Goals(latency_ms=100), Goals(latency_ms=100, fallback="reject")):
        with pytest.raises(Timeout):
            Pretend(serve).run(query(given))
    with pytest.raises(Timeout):
        Pretend(serve).run(query(Goals(latency_ms=100, fallback="best_effort"), How(timeout=5.0)))


def test_a_job_is_waited_for_no_longer_than_asked_whatever_the_server_does() -> None:
    def away(pretend: Pretend, send: Send) -> Reply:
        raise Unreachable("connection refused")

    def silent(pretend: Pretend, send: Send) -> Reply:
        takes(pretend, send, 3_600.0)
        raise AssertionError

    def busy(pretend: Pretend, send: Send) -> Reply:
        raise Overloaded(503, "draining", "it ends", None, 1.0)

    for serve in (away, silent, busy):
        for timeout in (5.0, 0.0):
            pretend = Pretend(serve)
            with pytest.raises(Timeout, match=f"within {timeout:g} s"):
                pretend.run(_jobs.wait(core(), 7, timeout, False))
            assert pretend.now <= max(timeout, _jobs.LEAST) and pretend.sent
    # Without a limit of one's own, patience is the limit.
    pretend = Pretend(away)
    with pytest.raises(Unreachable, match="connection refused"):
        pretend.run(_jobs.wait(core(), 7, None, False))
    assert 500 < pretend.now <= _jobs.PATIENCE
