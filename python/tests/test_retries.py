"""What is asked again, how often, and what the server is told then."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterator, List

import httpx
import pytest
from scripted import Scripted, broken, busy, goals, good, reply, silent

from modelless import (
    Client,
    GoalsUnreachable,
    InputError,
    NotAllowed,
    Overloaded,
    Refused,
    Retries,
    ServerFailed,
    Timeout,
    TooLate,
    Unreachable,
)
from modelless._errors import refusal
from modelless._retry import Budget

INPUT = b"\0\0\0\0"
QUICK = Retries(pause=0.001)


@pytest.fixture
def server() -> Iterator[Scripted]:
    """A server that answers as it is told."""
    server = Scripted()
    yield server
    server.close()


def test_what_is_refused_for_now_is_asked_again_with_what_is_left_of_its_latency(server: Scripted) -> None:
    server.replies = [busy(), busy(), good()]
    with Client(server.url, retries=Retries(pause=0.02)) as client:
        client.query("t", INPUT, latency_ms=2000, accuracy=0.5)
    told = [dict(goals(one)) for one in server.queries()]
    latencies = [float(one["latency_ms"]) for one in told]
    assert latencies[0] == 2000 and latencies[0] > latencies[1] > latencies[2] > 1000
    assert [one["accuracy"] for one in told] == ["0.5"] * 3


def test_a_connection_that_breaks_is_replaced_by_another(server: Scripted) -> None:
    server.replies = [broken, good()]
    with Client(server.url, retries=QUICK) as client:
        assert client.query("t", INPUT).numpy().tolist() == [1.0]
    first, second = server.queries()
    assert first.connection != second.connection and first.body == second.body == INPUT


def test_one_connection_is_used_again_and_the_task_is_described_once(server: Scripted) -> None:
    server.replies = [good(), good(), good()]
    with Client(server.url, api_key="key", headers={"X-Mine": "1"}) as client:
        for _ in range(3):
            client.query("t", INPUT)
    assert [one.method for one in server.asked] == ["GET", "POST", "POST", "POST"]
    assert {one.connection for one in server.asked} == {1}
    for one in server.asked:
        assert one.headers["authorization"] == "Bearer key" and one.headers["x-mine"] == "1"


def test_the_key_of_the_environment_is_sent_unless_another_is_given_and_never_shown(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELLESS_KEY", "mlk_secret\n")
    refused = '{"error": "this key is not known here", "reason": "unknown_key"}'
    for given, sent in ((None, "Bearer mlk_secret"), ("mlk_other", "Bearer mlk_other"), ("", None)):
        server.asked.clear()
        server.replies = [reply(401, refused)]
        with Client(server.url, api_key=given) as client:
            with pytest.raises(NotAllowed) as caught:
                client.query("t", INPUT)
            assert [one.headers.get("authorization") for one in server.asked] == [sent] * len(server.asked) != []
            for shown in (repr(client), repr(caught.value), str(caught.value), repr(client.__dict__)):
                assert "mlk_" not in shown
    with pytest.raises(InputError) as wrong:
        Client(server.url, api_key="mlk_two words")
    assert "mlk_two" not in str(wrong.value)


def test_a_refusal_that_another_try_cannot_change_is_told_at_once(server: Scripted) -> None:
    for status, reason, kind in ((422, "floor_unreachable", GoalsUnreachable), (504, "too_late", TooLate), (500, "x", ServerFailed)):
        server.replies = [reply(status, f'{{"error": "no", "reason": "{reason}"}}')]
        with Client(server.url, retries=QUICK) as client, pytest.raises(kind):
            client.query("t", INPUT)
        assert not server.replies
    assert len(server.queries()) == 3


def test_a_wait_that_ends_after_the_deadline_is_not_waited_for(server: Scripted) -> None:
    server.replies = [busy("2"), busy("2"), good()]
    began = time.monotonic()
    with Client(server.url) as client:
        with pytest.raises(Overloaded) as caught:
            client.query("t", INPUT, latency_ms=500)
        assert time.monotonic() - began < 1.5 and caught.value.retry_after == 2
        # Who would rather have it late waits.
        client.query("t", INPUT, latency_ms=500, fallback="best_effort")
    assert time.monotonic() - began > 2


ONCE: Dict[str, Callable[[Client], Any]] = {
    "rollback": lambda client: client.models.rollback("t", "m"),
    "rollback of a version": lambda client: client.models.rollback("t", "m", version=2),
    "remove a model": lambda client: client.models.remove("t", "m"),
    "remove a task": lambda client: client.tasks.remove("t"),
    "create a task": lambda client: client.tasks.create("t", "tensor"),
    "remove a job": lambda client: client.jobs.remove(7),
}


@pytest.mark.parametrize("what", ONCE)
def test_what_may_not_be_done_twice_is_asked_again_only_where_nothing_was_begun(
    server: Scripted, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    done = reply(200, '{"removed": [], "name": "m"}')
    in_doubt = reply(503, '{"error": "the database went away", "reason": "store_unavailable"}')
    proxy = reply(503, "upstream reset")
    with Client(server.url, retries=QUICK) as client:
        for doubt, kind in ((broken, Unreachable), (in_doubt, Overloaded), (proxy, Overloaded)):
            server.asked.clear()
            server.replies = [doubt, done]
            with pytest.raises(kind) as caught:
                ONCE[what](client)
            assert len(server.queries()) == 1 and getattr(caught.value, "maybe_done", True)
        server.asked.clear()
        server.replies = [busy(), done]
        ONCE[what](client)
        assert len(server.queries()) == 2

        send, refused = client._http.send, [httpx.ConnectError("connection refused")]

        def sending(request: Any, **how: Any) -> Any:
            if refused:
                raise refused.pop()
            return send(request, **how)

        monkeypatch.setattr(client._http, "send", sending)
        server.replies = [done]
        ONCE[what](client)
        assert not server.replies and not refused


def test_attempts_are_bounded(server: Scripted) -> None:
    server.replies = [busy()] * 5
    with Client(server.url, retries=Retries(attempts=4, pause=0.001)) as client, pytest.raises(Overloaded, match="queue_full"):
        client.query("t", INPUT)
    assert len(server.queries()) == 4


def test_nothing_is_waited_for_beyond_the_time_there_is(server: Scripted) -> None:
    server.replies = [silent]
    began = time.monotonic()
    with Client(server.url, retries=QUICK) as client, pytest.raises(Timeout, match="no answer came within"):
        client.query("t", INPUT, timeout=0.2)
    assert 0.1 < time.monotonic() - began < 5
    assert len(server.queries()) == 1, "who has no time left does not ask again"


def test_a_server_that_refuses_everything_is_not_asked_much_more_often_for_it(server: Scripted) -> None:
    calls = 100
    server.replies = [busy()] * (3 * calls)
    with Client(server.url, retries=Retries(pause=0.0)) as client:
        for _ in range(calls):
            with pytest.raises(Overloaded):
                client.query("t", INPUT)
    # The first ten retries were saved up, and each call earns a tenth; so does the one for the description.
    assert calls + 10 <= len(server.queries()) <= calls + 10 + calls * 0.1 + 1


def test_pauses_double_are_drawn_and_keep_to_what_the_server_says() -> None:
    budget = Budget(Retries(attempts=10, pause=0.1, longest=0.5), chance=lambda: 1.0)
    gone = Unreachable("x")
    pauses = [budget.again(gone, attempt, 60.0) for attempt in range(1, 6)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    assert budget.again(refusal(503, {"retry-after": "2"}, b"{}"), 1, 60.0) == 2.0
    assert budget.again(refusal(503, {}, b"{}"), 1, 0.05) is None, "it would be too late"
    assert Budget(Retries(), chance=lambda: 0.0).again(gone, 1, 1.0) == 0.0


def test_a_body_that_is_no_json_is_told_by_its_status() -> None:
    error: Refused = refusal(502, {}, b"<html>a proxy</html>")
    assert isinstance(error, ServerFailed) and error.reason == "http_502" and "<html>a proxy" in str(error)


def test_what_is_no_answer_of_ours_is_told_as_that(server: Scripted) -> None:
    server.replies = [reply(200, "[]"), reply(200, "<html>")]
    seen: List[str] = []
    with Client(server.url) as client:
        for _ in range(2):
            with pytest.raises(ServerFailed) as caught:
                client.query("t", INPUT)
            seen.append(str(caught.value))
    assert all("does not look like a modelless server" in one for one in seen)


def test_a_task_that_was_made_anew_is_described_anew(server: Scripted) -> None:
    gone = reply(404, '{"error": "there is no task", "reason": "unknown_task"}')
    server.replies = [good(), gone, good()]
    with Client(server.url) as client:
        client.query("t", INPUT)
        with pytest.raises(Refused):
            client.query("t", INPUT)
        client.query("t", INPUT)
    assert [one.method for one in server.asked] == ["GET", "POST", "POST", "GET", "POST"]
