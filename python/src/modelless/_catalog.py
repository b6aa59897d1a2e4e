"""What is asked beside queries: tasks, models, explanations, feedback."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union
from urllib.parse import urlencode

from ._answers import Answer
from ._core import Core, segment
from ._effects import Operation
from ._errors import InputError
from ._goals import Goals
from ._shown import DefaultVersion, Explanation, Model, Task, Trial, Verdict


def tasks(core: Core) -> Operation[List[Task]]:
    """All tasks, in short."""
    told = yield from core.get("/v1/tasks")
    return [Task.of(one) for one in told["tasks"]]


def task(core: Core, name: str) -> Operation[Task]:
    """One task with its variants."""
    told = yield from core.get(f"/v1/tasks/{segment(name)}")
    return Task.of(told)


def create(core: Core, about: Dict[str, Any]) -> Operation[Task]:
    """Makes a task, and waits until it is shown."""
    yield from core.call("POST", "/v1/tasks", about, repeatable=False)
    core.forget(about["name"])
    told = yield from core.get_soon(f"/v1/tasks/{segment(about['name'])}")
    return Task.of(told)


def remove_task(core: Core, name: str) -> Operation[None]:
    """Removes a task without models."""
    yield from core.call("DELETE", f"/v1/tasks/{segment(name)}", repeatable=False)
    core.forget(name)


def explain(core: Core, task: str, goals: Goals) -> Operation[Explanation]:
    """What would be decided."""
    query = goals.query()
    told = yield from core.get(f"/v1/tasks/{segment(task)}/explain{'?' + query if query else ''}")
    return Explanation.of(told)


def feedback(
    core: Core, of: Union[Answer, str], label: Optional[str], correct: Optional[bool]
) -> Operation[Verdict]:
    """Whether an answer was right."""
    if (label is None) == (correct is None):
        raise InputError("say either which label is right, label=..., or whether the answer was, correct=True or False")
    name = of if isinstance(of, str) else of.query_id
    body = {"label": label} if correct is None else {"verdict": "correct" if correct else "wrong"}
    told = yield from core.call("POST", f"/v1/queries/{segment(name)}/feedback", body)
    return Verdict.of(told)


def models(core: Core, task: Optional[str]) -> Operation[List[Model]]:
    """All models, or those of a task."""
    query = "" if task is None else "?" + urlencode({"task": task})
    told = yield from core.get(f"/v1/models{query}")
    return [Model.of(one) for one in told["models"]]


def versions(core: Core, task: str, name: str) -> Operation[List[Model]]:
    """A model in all its versions, newest first."""
    told = yield from core.get(_path(task, name))
    return [Model.of(one) for one in told["versions"]]


def promote(core: Core, task: str, name: str, version: int, force: bool, by: str) -> Operation[DefaultVersion]:
    """Makes a version the default."""
    body = {"version": version, "force": force, "by": by}
    told = yield from core.call("POST", _path(task, name) + "/promote", body)
    return DefaultVersion.of(told)


def roll_back(core: Core, task: str, name: str, version: Optional[int], force: bool, by: str) -> Operation[DefaultVersion]:
    """Goes back to the default before."""
    body: Dict[str, Any] = {"force": force, "by": by, **({} if version is None else {"version": version})}
    told = yield from core.call("POST", _path(task, name) + "/rollback", body, repeatable=False)
    return DefaultVersion.of(told)


def begin_trial(
    core: Core,
    task: str,
    name: str,
    version: int,
    asked: Tuple[float, bool],
    lasts: Optional[float],
    promote: bool,
    force: bool,
    by: str,
) -> Operation[Trial]:
    """Has a version answer a share of a task's queries, or copies of them."""
    share, shadow = asked
    body: Dict[str, Any] = {
        "model": name,
        "version": version,
        "share": share,
        "shadow": shadow,
        "promote_when_good": promote,
        "force": force,
        "by": by,
        **({} if lasts is None else {"for_ms": round(lasts * 1000)}),
    }
    told = yield from core.call("POST", _trial(task), body, repeatable=False)
    return Trial.of(told["trial"], told.get("told"))


def trial(core: Core, task: str) -> Operation[Trial]:
    """The trial of a task that runs, or else the last one."""
    told = yield from core.get(_trial(task))
    return Trial.of(told["trial"])


def stop_trial(core: Core, task: str, by: str) -> Operation[Trial]:
    """Stops the trial of a task."""
    told = yield from core.call("DELETE", f"{_trial(task)}?{urlencode({'by': by})}", repeatable=False)
    return Trial.of(told["trial"])


def trials(core: Core, task: Optional[str]) -> Operation[List[Trial]]:
    """Trials of versions, newest first."""
    query = "" if task is None else "?" + urlencode({"task": task})
    told = yield from core.get(f"/v1/trials{query}")
    return [Trial.of(one) for one in told["trials"]]


def _trial(task: str) -> str:
    return f"/v1/tasks/{segment(task)}/trial"


def remove(core: Core, task: str, name: str, version: Optional[int], force: bool, by: str) -> Operation[List[str]]:
    """Takes a model out of service. What was removed, as NAME@VERSION."""
    query: Dict[str, str] = {"by": by, **({"force": "true"} if force else {})}
    if version is not None:
        query["version"] = str(version)
    told = yield from core.call("DELETE", f"{_path(task, name)}?{urlencode(query)}", repeatable=False)
    return [f"{one['name']}@{one['version']}" for one in told["removed"]]


def _path(task: str, name: str) -> str:
    return f"/v1/models/{segment(task)}/{segment(name)}"
