"""How long what may take, by a clock that is only reckoned."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from typing import Any, Iterator, List

import anyio
import httpx
import pytest
from pretend import ANSWERED, TOLD, Pretend
from scripted import ANSWER, DECISION, Scripted

from modelless import AsyncClient, Client, Goals, Overloaded, Retries, Timeout, Unreachable, _core, _drive, _inputs, _jobs
from modelless._core import Core, How
from modelless._effects import Reply, Send, Upload
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


TEXTS = Reply(200, {}, b'{"name": "t", "kind": "feature-extraction", "defaults": {"latency_ms": 500}}')


def texts(count: int, goals: Goals, how: How = How()) -> Any:
    return core().query("t", ["a text"] * count, goals, {}, how)


def told(send: Send, total_ms: int = 0) -> Reply:
    """A vector for each text, and names of their queries."""
    count = len(json.loads(send.content)["inputs"])
    decision = {**DECISION, "modelless-query-id": ", ".join(["name"] * count), "modelless-total-ms": str(total_ms)}
    return Reply(200, decision, json.dumps([[1.0]] * count).encode())


def slow(pretend: Pretend, send: Send) -> Reply:
    """Each text in time from its turn on, all of a request together long after one would be late."""
    if send.method == "GET":
        return TEXTS
    takes(pretend, send, 0.4 * len(json.loads(send.content)["inputs"]))
    return told(send)


def test_a_list_of_texts_is_waited_for_as_long_as_each_of_them_may_take_in_its_turn() -> None:
    pretend = Pretend(slow)
    assert len(pretend.run(texts(1_000, Goals()))) == 1_000
    assert [send.timeout for send in pretend.sent[1:]] == pytest.approx([0.5 * count + 5.0 for count in [62, 63] * 8])
    assert len(Pretend(slow).run(texts(64, Goals(fallback="best_effort")))) == 64
    # Where a bound is given it holds for all of a request, and who sets a limit has that.
    for goals, how in ((Goals(latency_ms=500), How()), (Goals(), How(timeout=20.0))):
        pretend = Pretend(slow)
        with pytest.raises(Timeout):
            pretend.run(texts(1_000, goals, how))
        assert pretend.sent[1].timeout == pytest.approx(how.timeout or 5.5)


@pytest.mark.parametrize(("total_ms", "at_once"), [(250, [2, 4, 8]), (375, [2, 2, 2, 2]), (376, [2] + [1] * 6)])
def test_as_many_requests_of_a_list_are_under_way_as_do_not_make_each_others_texts_late(total_ms: int, at_once: List[int]) -> None:
    def serve(pretend: Pretend, send: Send) -> Reply:
        return TEXTS if send.method == "GET" else told(send, total_ms)

    pretend = Pretend(serve)
    assert len(pretend.run(texts(1_000, Goals()))) == 1_000
    assert pretend.at_once == at_once
    # Never more than the client may.
    pretend = Pretend(serve)
    pretend.run(Core(Budget(Retries()), 1).query("t", ["a text"] * 1_000, Goals(), {}, How()))
    assert set(pretend.at_once) == {1}
    # A bound that is asked holds for each request, and the first that misses it ends them all.
    pretend = Pretend(serve)
    pretend.run(texts(1_000, Goals(latency_ms=500)))
    assert pretend.at_once == [16]


def test_texts_that_are_refused_for_now_are_asked_again_as_long_as_they_may_take() -> None:
    def busy(pretend: Pretend, send: Send) -> Reply:
        if send.method == "GET" or len(pretend.sent) > 2:
            return slow(pretend, send)
        takes(pretend, send, 3.0)
        raise Overloaded(503, "node_lost", "a node went away", None, 1.0)

    assert len(Pretend(busy).run(texts(64, Goals()))) == 64
    with pytest.raises(Overloaded):
        Pretend(busy).run(texts(64, Goals(latency_ms=500)))


def test_no_text_of_a_list_goes_alone() -> None:
    for count in (1, 2, 64, 65, 128, 129, 64 * 63 + 1):
        parts = list(_core._requests(count))
        assert [first for first, _ in parts] == [0] + [end for _, end in parts[:-1]] and parts[-1][1] == count
        sizes = {end - first for first, end in parts}
        assert max(sizes) <= 64 and max(sizes) - min(sizes) <= 1 and min(sizes) > min(count - 1, 31)
    assert list(_core._requests(0)) == []


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


def test_all_of_a_query_counts_for_the_time_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(pretend: Pretend, send: Send) -> Reply:
        takes(pretend, send, 2.0)
        return TOLD if send.method == "GET" else ANSWERED

    write = _inputs.body

    def writing(*args: Any) -> Any:
        pretend.now += 1.0
        return write(*args)

    monkeypatch.setattr(_inputs, "body", writing)
    for timeout, left in ((5.5, 2.5), (None, 5.1)):
        pretend = Pretend(serve)
        pretend.run(query(Goals(latency_ms=100), How(timeout)))
        assert pretend.sent[-1].timeout == pytest.approx(left), "without a limit of one's own, the server has all it is told"
    for timeout in (4.5, 2.5):
        pretend = Pretend(serve)
        with pytest.raises(Timeout):
            pretend.run(query(Goals(latency_ms=100), How(timeout)))
        assert pretend.now <= max(timeout, 3.0), "what writes is not cut off, and nothing is sent after it"


@pytest.fixture
def dripping() -> Iterator[str]:
    """The address of a server that gives an answer byte by byte: never silent for long, and never ready in time."""
    server, ended = Scripted(), threading.Event()

    def drip(connection: socket.socket) -> bool:
        body = " " * 1_000 + ANSWER
        lines = "".join(f"{name}: {value}\r\n" for name, value in DECISION.items())
        connection.sendall(f"HTTP/1.1 200 OK\r\n{lines}content-length: {len(body)}\r\n\r\n".encode())
        for byte in body.encode():
            ended.wait(0.01)
            connection.sendall(bytes([byte]))
        return False

    server.replies = [drip]
    yield server.url
    ended.set()
    server.close()


def test_a_server_that_drips_is_cut_off(dripping: str) -> None:
    with Client(dripping, retries=Retries(attempts=1)) as client:
        with pytest.raises(Timeout, match="no answer came within"):
            client.query("t", INPUT, timeout=0.3)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_server_that_drips_is_cut_off_where_it_is_awaited(dripping: str, backend: str) -> None:
    async def ask() -> None:
        async with AsyncClient(dripping, retries=Retries(attempts=1)) as client:
            with pytest.raises(Timeout, match="no answer came within"):
                await client.query("t", INPUT, timeout=0.3)

    anyio.run(ask, backend=backend)


def test_httpx_has_what_is_left_as_it_asks_and_a_body_is_taken_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    clock = itertools.count()
    monkeypatch.setattr(_drive, "monotonic", lambda: float(next(clock)))  # a second a look
    limits = _drive.Left(20.0)
    assert [limits.get(name) for name in ("pool", "connect", "write", "read")] == [19.0, 10.0, 17.0, 16.0]

    monkeypatch.setattr(_drive, "PIECE", 10)
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    sent: List[int] = []
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200))) as http:
        driver = _drive.SyncDriver(http, _drive.Requests("http://here", {}))
        for body in ({"content": bytes(100)}, {"upload": Upload(str(file), 100, sent.append)}):
            driver._send(Send("PUT", "/", 20.0, **body))
            with pytest.raises(Timeout):
                driver._send(Send("PUT", "/", 5.0, **body))
    assert sum(sent) in range(101, 200), "the second one was not sent whole"
