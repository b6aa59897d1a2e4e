"""Policies, and what became of a query that has ended."""

from __future__ import annotations

import json
from typing import Any, Dict

import anyio
import pytest
from conftest import PICTURES
from pretend import Pretend

import modelless
from modelless import AsyncClient, Client, InputError, NotFound
from modelless._core import Core
from modelless._effects import Reply
from modelless._ended import ended
from modelless._policies import delete_policy, set_policy
from modelless._retry import Budget, Retries

CORE = Core(Budget(Retries()), 1)


def told(body: Dict[str, Any]) -> Pretend:
    return Pretend(lambda pretend, send: Reply(200, {}, json.dumps(body).encode()))


def test_a_policy_is_set_listed_and_deleted(client: Client) -> None:
    before = client.policies.list()
    said = client.policies.set("default", task="fashion", goals={"prefer": "cost"}, bounds={"max_cost": 1}, weight=3, reserve=0.3)
    try:
        assert (said.app, said.task, said.weight, said.reserve) == ("default", "fashion", 3, 0.3)
        assert (said.goals, said.bounds) == ({"prefer": "cost"}, {"max_cost": 1.0})
        assert said in client.policies.list()
        with pytest.raises(modelless.BadRequest, match="reserve"):
            client.policies.set("default", task="fashion", reserve=2)
    finally:
        client.policies.delete("default", task="fashion")
    assert client.policies.list() == before


def test_what_became_of_a_query_is_told_by_its_answer_and_by_its_number(client: Client) -> None:
    answer = client.query("fashion", PICTURES / "boot.png", accuracy=0.9)
    told = client.explain_query(answer)
    assert (told.task, told.outcome, told.variant) == ("fashion", "answered", answer.decision.variant)
    assert told.decisions[-1].action == "sent" and told.decisions[-1].node == told.node
    assert [one.finding for one in told.decisions[-1].candidates].count("chosen") == 1
    assert any(one.stage == "running the batch" and one.took_ms > 0 for one in told.stages)
    assert "sent to" in str(told)
    assert client.explain_query(told.query).query == told.query
    with pytest.raises(NotFound):
        client.explain_query("0000000000000001")


def test_the_same_is_awaited(url: str) -> None:
    async def asks() -> None:
        async with AsyncClient(url) as client:
            answer = await client.query("fashion", PICTURES / "boot.png")
            assert isinstance(answer, modelless.Answer)
            assert (await client.explain_query(answer)).outcome == "answered"
            await client.policies.set("default", task="fashion", weight=2)
            assert any(one.weight == 2 for one in await client.policies.list())
            await client.policies.delete("default", task="fashion")

    anyio.run(asks)


def test_only_what_is_said_is_sent() -> None:
    pretend = told({"tenant": "a", "app": "shop", "task": None, "weight": 2})
    said = pretend.run(set_policy(CORE, ("a", "shop", None), None, None, {"weight": 2, "model": None}))
    assert (said.weight, said.reserve, said.goals) == (2, None, {})
    sent = pretend.sent[0]
    assert (sent.method, sent.target) == ("PUT", "/v1/policies")
    assert json.loads(sent.content) == {"tenant": "a", "app": "shop", "goals": {}, "bounds": {}, "weight": 2}
    with pytest.raises(InputError, match="says nothing"):
        pretend.run(set_policy(CORE, (None, "shop", None), None, {}, {"weight": None}))
    pretend.run(delete_policy(CORE, (None, "shop", "t")))
    assert json.loads(pretend.sent[-1].content) == {"app": "shop", "task": "t"}


def test_why_one_was_refused_is_told_in_words() -> None:
    because = "its application used 41 % of the device time, its share is 25 %"
    decision = {
        "after_ms": 1.5,
        "did": {"action": "refused", "reason": "too_late"},
        "candidates": [],
        "share": {"used": 0.41, "share": 0.25, "because": because},
    }
    body = {
        "query": "00000000000000ab",
        "tenant": "a",
        "app": "shop",
        "task": "t",
        "asked": {},
        "outcome": "too_late",
        "stages": [],
        "decisions": [decision],
    }
    pretend = told(body)
    query = pretend.run(ended(CORE, "00000000000000ab"))
    assert pretend.sent[0].target == "/v1/queries/00000000000000ab/explain"
    assert (query.decisions[0].used, query.decisions[0].share, query.decisions[0].reason) == (0.41, 0.25, "too_late")
    assert str(query) == f"00000000000000ab of a/shop, t: too_late\n  1.500 ms after it came: refused: too_late; {because}"
