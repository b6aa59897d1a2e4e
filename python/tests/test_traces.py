"""What connects a program's query with the server's log and traces."""

from __future__ import annotations

import pickle
import sys
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator, Optional

import anyio
import pytest
from scripted import ANSWER, DECISION, Scripted, good, reply

from modelless import AsyncClient, Client, GoalsUnreachable, Overloaded, Retries

INPUT = b"\0\0\0\0"
#: As OpenTelemetry keeps the span that a program is in.
CURRENT: "ContextVar[Optional[int]]" = ContextVar("current", default=None)


@pytest.fixture
def server() -> Iterator[Scripted]:
    """A server that answers as it is told."""
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program that uses OpenTelemetry, and is in a span."""

    def current() -> Any:
        span = CURRENT.get()
        state = SimpleNamespace(to_header=lambda: "a=1" if span == 2 else "")
        context = SimpleNamespace(is_valid=span is not None, trace_id=0xABC, span_id=span, trace_flags=1, trace_state=state)
        return SimpleNamespace(get_span_context=lambda: context)

    interface: Any = SimpleNamespace(get_current_span=current)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", interface)
    token = CURRENT.set(1)
    yield
    CURRENT.reset(token)


def parent(span: int) -> str:
    return f"00-{0xABC:032x}-{span:016x}-01"


def test_a_query_joins_the_trace_it_is_asked_in(server: Scripted, traced: None) -> None:
    server.replies = [good()] * 12
    with Client(server.url, at_once=4) as client:
        client.query("t", INPUT)
        assert {one.headers.get("traceparent") for one in server.asked} == {parent(1)}
        assert not any("tracestate" in one.headers for one in server.asked)
        CURRENT.set(2)
        server.asked.clear()
        client.query("t", [INPUT] * 10)  # by threads
        assert {one.headers.get("traceparent") for one in server.queries()} == {parent(2)}
        assert {one.headers.get("tracestate") for one in server.queries()} == {"a=1"}
        CURRENT.set(None)
        server.asked.clear()
        client.query("t", INPUT)
        assert "traceparent" not in server.queries()[0].headers


def test_an_awaited_query_does_too(server: Scripted, traced: None) -> None:
    server.replies = [good()] * 6

    async def ask() -> None:
        async with AsyncClient(server.url) as client:
            await client.query("t", [INPUT] * 6)

    for backend in ("asyncio", "trio"):
        server.replies = [good()] * 6
        server.asked.clear()
        anyio.run(ask, backend=backend)
        assert [one.headers.get("traceparent") for one in server.queries()] == [parent(1)] * 6


def test_a_header_of_ones_own_goes_instead(server: Scripted, traced: None) -> None:
    server.replies = [good()]
    own = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    with Client(server.url, headers={"Traceparent": own}) as client:
        client.query("t", INPUT)
    assert server.queries()[0].headers["traceparent"] == own and "tracestate" not in server.queries()[0].headers


def test_who_uses_no_opentelemetry_sends_nothing_and_imports_nothing(server: Scripted) -> None:
    server.replies = [good()]
    before = {name for name in sys.modules if name.startswith("opentelemetry")}
    with Client(server.url) as client:
        client.query("t", INPUT)
    assert "traceparent" not in server.queries()[0].headers
    assert {name for name in sys.modules if name.startswith("opentelemetry")} == before


def test_an_answer_and_a_refusal_tell_the_number_of_their_query(server: Scripted) -> None:
    number = {"modelless-query": "00000000000000ab"}
    no = reply(503, '{"error": "too many queries wait", "reason": "queue_full"}', number)
    server.replies = [reply(200, ANSWER, {**DECISION, **number}), no]
    with Client(server.url, retries=Retries(attempts=1)) as client:
        assert client.query("t", INPUT).decision.query == "00000000000000ab"
        with pytest.raises(Overloaded) as caught:
            client.query("t", INPUT)
    assert caught.value.query == pickle.loads(pickle.dumps(caught.value)).query == "00000000000000ab"


def test_a_real_server_numbers_what_it_answers_and_refuses(client: Client, boot: Path) -> None:
    with pytest.raises(GoalsUnreachable) as caught:
        client.query("fashion", boot, accuracy=0.999)
    numbers = {client.query("fashion", boot).decision.query, caught.value.query}
    assert len(numbers) == 2 and all(len(number) == 16 for number in numbers)
