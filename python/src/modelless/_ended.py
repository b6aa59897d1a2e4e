"""What became of a query that has ended, and why, as plain objects. What is told beyond the fields can be read in `raw`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple, Union

from ._answers import Answer
from ._core import Core, segment
from ._effects import Operation
from ._shown import Candidate


@dataclass(frozen=True)
class Stage:
    """A part of a query's time."""

    stage: str
    #: 99th percentile, where anything was expected.
    expected_ms: Optional[float]
    took_ms: float


@dataclass(frozen=True)
class Decided:
    """One decision on a query, made again from what the gateway saw then."""

    after_ms: float
    #: `sent`, `waits` or `refused`.
    action: str
    #: Where it was sent to.
    node: Optional[str]
    #: Why it was refused.
    reason: Optional[str]
    #: Of the devices' time what its application had used and what it may count on, where the task's applications share and not all
    #: could be answered in time; and that in words.
    used: Optional[float]
    share: Optional[float]
    share_because: Optional[str]
    candidates: Tuple[Candidate, ...]
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Decided":
        """From JSON."""
        did: Dict[str, Any] = told["did"]
        share: Dict[str, Any] = told.get("share") or {}
        return cls(
            after_ms=told["after_ms"],
            action=did["action"],
            node=did.get("node"),
            reason=did.get("reason"),
            used=share.get("used"),
            share=share.get("share"),
            share_because=share.get("because"),
            candidates=tuple(Candidate.of(one) for one in told.get("candidates") or ()),
            raw=told,
        )


@dataclass(frozen=True)
class EndedQuery:
    """What became of a query."""

    query: str
    tenant: str
    app: str
    task: Optional[str]
    #: `answered`, or the reason of a refusal.
    outcome: str
    #: The goals that held, and whose each is (`from`).
    asked: Dict[str, Any]
    variant: Optional[str]
    node: Optional[str]
    total_ms: Optional[float]
    in_time: Optional[bool]
    stages: Tuple[Stage, ...]
    decisions: Tuple[Decided, ...]
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "EndedQuery":
        """From JSON."""
        stages = tuple(Stage(one["stage"], one["expected_ms"], one["took_ms"]) for one in told["stages"])
        return cls(
            query=told["query"],
            tenant=told["tenant"],
            app=told["app"],
            task=told.get("task"),
            outcome=told["outcome"],
            asked=told["asked"],
            variant=told.get("variant"),
            node=told.get("node"),
            total_ms=told.get("total_ms"),
            in_time=told.get("in_time"),
            stages=stages,
            decisions=tuple(Decided.of(one) for one in told["decisions"]),
            raw=told,
        )

    def __str__(self) -> str:
        where = f" by {self.variant} on {self.node} in {self.total_ms:.2f} ms" if self.total_ms is not None else ""
        lines = [f"{self.query} of {self.tenant}/{self.app}, {self.task or '?'}: {self.outcome}{where}"]
        for one in self.decisions:
            what = {"sent": f"sent to {one.node}", "refused": f"refused: {one.reason}"}.get(one.action, one.action)
            share = f"; {one.share_because}" if one.share_because else ""
            lines.append(f"  {one.after_ms:.3f} ms after it came: {what}{share}")
        return "\n".join(lines)


def ended(core: Core, of: Union[Answer, str]) -> Operation[EndedQuery]:
    """What became of a query."""
    name = of if isinstance(of, str) else of.query_id
    told = yield from core.get(f"/v1/queries/{segment(name)}/explain")
    return EndedQuery.of(told)
