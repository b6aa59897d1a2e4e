"""The awaited client against a real server, on both kinds of event loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Tuple

import anyio
import numpy as np
import pytest
from scripted import Scripted, busy, good, silent

from modelless import AsyncClient, BadRequest, GoalsUnreachable, Overloaded, Retries, Timeout

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Every test on each of them."""
    return request.param


async def test_it_answers_as_the_blocking_one_does(url: str, client: Any, boot: Path) -> None:
    async with AsyncClient(url) as awaited:
        answer = await awaited.query("fashion", boot, variant="cnn_m-fp32")
        assert answer.raw == client.query("fashion", boot, variant="cnn_m-fp32").raw
        tensor = await awaited.query("fashion-tensor", np.zeros((28, 28), "f4"))
        assert tensor.numpy().shape == (10,)
        with pytest.raises(GoalsUnreachable):
            await awaited.query("fashion", boot, accuracy=0.999)
        task = await awaited.tasks.get("fashion")
        assert task.variants == client.tasks.get("fashion").variants or len(task.variants) == 12
        explained = await awaited.explain("fashion", accuracy=0.9)
        assert explained.chosen is not None
        assert (await awaited.feedback(answer, label="Ankle boot")).verdict == "correct"
        assert {one.name for one in await awaited.tasks.list()} >= {"fashion", "fashion-tensor"}


async def test_a_list_is_asked_side_by_side_and_answered_in_its_order(url: str, boot: Path) -> None:
    async with AsyncClient(url, at_once=8) as client:
        names = ["boot", "shirt"] * 16
        paths = [boot.with_name(f"{name}.png") for name in names]
        answers = await client.query("fashion", paths, variant="cnn_l-int8")
        assert [answer.label for answer in answers] == ["Ankle boot" if name == "boot" else "Shirt" for name in names]
        with pytest.raises(BadRequest, match="input 1 of the list"):
            await client.query("fashion", [boot, b"no picture", boot])


async def test_many_tasks_share_a_client(url: str, boot: Path) -> None:
    labels = []
    async with AsyncClient(url, connections=4) as client:

        async def ask() -> None:
            labels.append((await client.query("fashion", boot, variant="cnn_l-int8")).label)

        async with anyio.create_task_group() as group:
            for _ in range(24):
                group.start_soon(ask)
    assert labels == ["Ankle boot"] * 24


@pytest.fixture
def script() -> Any:
    """A server that answers as it is told."""
    server = Scripted()
    yield server
    server.close()


async def test_it_asks_again_and_keeps_to_its_time(script: Scripted) -> None:
    script.replies = [busy(), good(), busy(), silent]
    async with AsyncClient(script.url, retries=Retries(pause=0.001)) as client:
        assert (await client.query("t", b"\0\0\0\0")).numpy().tolist() == [1.0]
    async with AsyncClient(script.url, retries=Retries(attempts=1)) as client:
        with pytest.raises(Overloaded):
            await client.query("t", b"\0\0\0\0")
        with pytest.raises(Timeout):
            await client.query("t", b"\0\0\0\0", timeout=0.2)


async def test_a_query_that_is_cancelled_leaves_the_client_usable(script: Scripted) -> None:
    script.replies = [silent, good()]
    async with AsyncClient(script.url, connections=1) as client:
        with anyio.move_on_after(0.2) as scope:
            await client.query("t", b"\0\0\0\0")
        assert scope.cancelled_caught
        assert (await client.query("t", b"\0\0\0\0")).numpy().tolist() == [1.0]


def words(path: Path) -> Tuple[str, ...]:
    """A client's source without what must differ."""
    text = path.read_text()
    for awaited, blocking in (
        ("async def ", "def "),
        ("await ", ""),
        ("AsyncClient", "Client"),
        ("AsyncDriver", "SyncDriver"),
        ("AsyncTasks", "Tasks"),
        ("AsyncModels", "Models"),
        ("AsyncJobs", "Jobs"),
        ("AsyncPolicies", "Policies"),
        ("AsyncIterator", "Iterator"),
        ("async for ", "for "),
        ("__aenter__", "__enter__"),
        ("__aexit__", "__exit__"),
        ("aclose", "close"),
    ):
        text = text.replace(awaited, blocking)
    return tuple(line for line in text.splitlines() if '"""A server' not in line and '"""The client that' not in line)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_two_clients_offer_the_same() -> None:
    sources = Path(__file__).parents[1] / "src/modelless"
    assert words(sources / "_async_client.py") == words(sources / "_client.py")
