"""What the package costs beside httpx alone: the same queries by both, in turns, at one server.

    python overhead.py URL PICTURE BLOCKS ROUNDS

Writes one line of JSON: for each case its blocks, and of each the microseconds of every round. httpx is used as somebody would who
knows it well: one client, a path that is there already, goals in it, and the status checked.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List

import httpx
import numpy as np

import modelless

URL, PICTURE = sys.argv[1:3]
BLOCKS, ROUNDS = map(int, sys.argv[3:5])
# The cheapest model: what the server does itself would only hide what clients do.
GOALS: Dict[str, Any] = {"accuracy": 0.8, "latency_ms": 5000, "prefer": "latency"}
QUERY = "accuracy=0.8&latency_ms=5000&prefer=latency"
RAW = {"content-type": "application/octet-stream"}

picture = Path(PICTURE).read_bytes()
array = np.random.default_rng(1).random((1, 28, 28), dtype="f4")
Blocks = List[Dict[str, Any]]


def block(ask: Callable[[], Any], rounds: int) -> List[float]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        ask()
        times.append((time.perf_counter_ns() - began) / 1e3)
    return times


def case(alone: Callable[[], Any], ours: Callable[[], Any]) -> Blocks:
    sides = {"httpx": alone, "modelless": ours}
    for ask in sides.values():
        block(ask, ROUNDS // 4)  # not counted: connections, descriptions, caches
    return [{name: block(sides[name], ROUNDS) for name in order(at)} for at in range(BLOCKS)]


async def awaited_case(alone: Callable[[], Awaitable[Any]], ours: Callable[[], Awaitable[Any]]) -> Blocks:
    sides = {"httpx": alone, "modelless": ours}

    async def block(ask: Callable[[], Awaitable[Any]], rounds: int) -> List[float]:
        times = []
        for _ in range(rounds):
            began = time.perf_counter_ns()
            await ask()
            times.append((time.perf_counter_ns() - began) / 1e3)
        return times

    for ask in sides.values():
        await block(ask, ROUNDS // 4)
    return [{name: await block(sides[name], ROUNDS) for name in order(at)} for at in range(BLOCKS)]


def order(at: int) -> List[str]:
    return ["httpx", "modelless"] if at % 2 == 0 else ["modelless", "httpx"]


def told(response: httpx.Response) -> Any:
    response.raise_for_status()
    return response.json()


def blocking() -> Dict[str, Blocks]:
    with httpx.Client(base_url=URL) as alone, modelless.Client(URL) as ours:
        return {
            "picture": case(
                lambda: told(alone.post(f"/v1/tasks/fashion?{QUERY}", content=picture, headers=RAW)),
                lambda: ours.query("fashion", picture, **GOALS).labels,
            ),
            "tensor": case(
                lambda: told(alone.post(f"/v1/tasks/fashion-tensor?{QUERY}", content=array.tobytes(), headers=RAW)),
                lambda: ours.query("fashion-tensor", array, **GOALS).outputs,
            ),
        }


async def awaited() -> Dict[str, Blocks]:
    async with httpx.AsyncClient(base_url=URL) as alone, modelless.AsyncClient(URL) as ours:

        async def theirs() -> Any:
            return told(await alone.post(f"/v1/tasks/fashion?{QUERY}", content=picture, headers=RAW))

        async def own() -> Any:
            return (await ours.query("fashion", picture, **GOALS)).labels

        return {"awaited": await awaited_case(theirs, own)}


print(json.dumps({**blocking(), **asyncio.run(awaited())}))
