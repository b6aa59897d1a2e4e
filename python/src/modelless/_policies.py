"""Policies: what holds for the queries of an application or a tenant beside what they say themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ._core import Core
from ._effects import Operation
from ._errors import InputError


@dataclass(frozen=True)
class Policy:
    """What holds for an application or a tenant, for a task or for all."""

    tenant: Optional[str]
    #: `None`: all of the tenant's.
    app: Optional[str]
    #: `None`: all tasks.
    task: Optional[str]
    #: Where a query gives none: `accuracy`, `latency_ms`, `max_cost`, `prefer`.
    goals: Dict[str, Any]
    #: Whatever it gives: `accuracy` at least, `max_cost` at most.
    bounds: Dict[str, Any]
    #: Only this model, or this variant, answers.
    model: Optional[str]
    variant: Optional[str]
    #: What the application gets of a task's devices beside others, where not all can be answered in time; others have 1.
    weight: Optional[int]
    #: What part of them is its own whatever others ask, 0 to 1.
    reserve: Optional[float]
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Policy":
        """From JSON."""
        goals, bounds = (dict(told.get(part) or {}) for part in ("goals", "bounds"))
        names = {name: told.get(name) for name in ("tenant", "app", "task", "model", "variant", "weight", "reserve")}
        return cls(goals=goals, bounds=bounds, raw=told, **names)


def policies(core: Core) -> Operation[List[Policy]]:
    """All that whoever asks may see."""
    told = yield from core.get("/v1/policies")
    return [Policy.of(one) for one in told["policies"]]


def set_policy(
    core: Core,
    of: Tuple[Optional[str], Optional[str], Optional[str]],
    goals: Optional[Mapping[str, Any]],
    bounds: Optional[Mapping[str, Any]],
    more: Mapping[str, Any],
) -> Operation[Policy]:
    """Says all that is to hold from now on, in place of what was said before."""
    said: Dict[str, Any] = {"goals": dict(goals or {}), "bounds": dict(bounds or {})}
    said.update({name: value for name, value in more.items() if value is not None})
    if not any(value for value in said.values()):
        raise InputError("this says nothing; say what is to hold from now on, or take a policy away with `delete`")
    told = yield from core.call("PUT", "/v1/policies", {**_named(of), **said})
    return Policy.of(told)


def delete_policy(core: Core, of: Tuple[Optional[str], Optional[str], Optional[str]]) -> Operation[None]:
    """Takes away what was said before."""
    yield from core.call("PUT", "/v1/policies", _named(of))


def _named(of: Tuple[Optional[str], Optional[str], Optional[str]]) -> Dict[str, Any]:
    tenant, app, task = of
    return {name: value for name, value in (("tenant", tenant), ("app", app), ("task", task)) if value is not None}
