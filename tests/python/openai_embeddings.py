"""OpenAI's own clients, sync and async, against a task of vectors.

    python openai_embeddings.py URL TASK
"""

import asyncio
import sys

import numpy as np
from calls import Calls, same
from openai import AsyncOpenAI, OpenAI

URL, TASK = sys.argv[1:]
SET = {"base_url": f"{URL}/openai/v1", "api_key": "none", "max_retries": 0, "timeout": 60}
QUERY = {"latency_ms": "20000"}


def vectors(answer, count):
    same([one.index for one in answer.data], list(range(count)))
    all_of_them = np.array([one.embedding for one in answer.data])
    assert all_of_them.shape[0] == count and all_of_them.shape[1] > 1 and np.isfinite(all_of_them).all()
    return all_of_them


def sync(calls):
    client = OpenAI(**SET)
    call = lambda name, what: calls.call("openai OpenAI", name, what)
    embed = lambda given, **more: client.embeddings.create(model=TASK, input=given, extra_query=QUERY, **more)
    call("models.list", lambda: same(TASK in [model.id for model in client.models.list()], True))
    call("models.retrieve", lambda: same(client.models.retrieve(TASK).id, TASK))
    call("embeddings.create, as it asks by itself (base64)", lambda: vectors(embed("a ship"), 1))
    call("embeddings.create, float", lambda: vectors(embed("a ship", encoding_format="float"), 1))

    def same_in_both():
        floats = vectors(embed(["a ship", "a boat"], encoding_format="float"), 2)
        assert np.abs(floats - vectors(embed(["a ship", "a boat"]), 2)).max() < 1e-6

    call("embeddings.create, both forms say the same", same_in_both)
    call("embeddings.create, 300 texts", lambda: vectors(embed([f"text {n}" for n in range(300)]), 300))
    call("embeddings.create, goals in the body", lambda: vectors(client.embeddings.create(
        model=TASK, input="a ship", extra_body={"goals": {"latency_ms": 20_000, "prefer": "cost"}}), 1))
    call("embeddings.create, the decision in headers", lambda: same(bool(client.embeddings.with_raw_response.create(
        model=TASK, input="a ship", extra_query=QUERY).headers["modelless-variant"]), True))
    calls.refuses("openai OpenAI", "embeddings.create, tokens", lambda: embed([[1, 2]]), "not tokens")
    calls.refuses("openai OpenAI", "embeddings.create, an unknown model",
        lambda: client.embeddings.create(model="none", input="x"), "there is no task")
    calls.refuses("openai OpenAI", "embeddings.create, other dimensions", lambda: embed("x", dimensions=3), "`dimensions` is 3")


async def asynchronous(calls):
    async with AsyncOpenAI(**SET) as client:
        async def embed(count):
            texts = [f"text {n}" for n in range(count)]
            vectors(await client.embeddings.create(model=TASK, input=texts, extra_query=QUERY), count)

        async def listed():
            assert TASK in [model.id async for model in client.models.list()]

        await calls.wait("openai AsyncOpenAI", "models.list", listed())
        await calls.wait("openai AsyncOpenAI", "embeddings.create", embed(1))
        await calls.wait("openai AsyncOpenAI", "embeddings.create, 10 at once", asyncio.gather(*(embed(3) for _ in range(10))))


calls = Calls()
sync(calls)
asyncio.run(asynchronous(calls))
calls.end()
