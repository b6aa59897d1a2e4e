"""What a server tells of tasks, variants, models and its decisions, as plain objects.

Each keeps the JSON it was made of as `raw`: what is told beyond the fields here can be read there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from ._errors import Nearest


@dataclass(frozen=True)
class Variant:
    """One way to run a model, and what is known of it."""

    name: str
    model: str
    version: int
    engine: str
    precision: str
    #: What floors are compared with.
    accuracy: Optional[float]
    accuracy_provenance: Optional[str]
    #: Of one item alone (mean), where it was measured or estimated.
    latency_ms: Optional[float]
    #: `measured`, `coarse` (measured in too short a time) or `estimated` (worked out from another device class).
    latency_known: Optional[str]
    #: Whether no other is more accurate and quicker and cheaper, by what the server expects.
    on_frontier: Optional[bool]
    #: Whether it answers queries that pin nothing.
    default: bool
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Variant":
        """From JSON."""
        profile: Dict[str, Any] = next(iter(told.get("profiles") or ()), {})
        latency: Dict[str, Any] = profile.get("latency") or {}
        first: Dict[str, Any] = next(iter(latency.get("by_batch") or ()), {})
        known = "coarse" if profile.get("coarse") else latency.get("provenance", "measured")
        return cls(
            name=told["name"],
            model=told["model"],
            version=told.get("model_version", 1),
            engine=told.get("engine", ""),
            precision=told.get("precision", ""),
            accuracy=told.get("accuracy"),
            accuracy_provenance=told.get("accuracy_provenance"),
            latency_ms=first.get("mean_ms"),
            latency_known=known if first else None,
            on_frontier=told.get("on_frontier"),
            default=bool(told.get("default", True)),
            raw=told,
        )


@dataclass(frozen=True)
class Task:
    """A task. `variants`, `labels` and the tensors are there where one task was asked for, and empty in a list of all."""

    name: str
    kind: str
    metric: str
    description: str
    #: The least and the most accurate of its variants.
    accuracy_from: Optional[float]
    accuracy_to: Optional[float]
    #: Goals of queries that give none.
    defaults: Dict[str, Any]
    labels: Tuple[str, ...] = ()
    variants: Tuple[Variant, ...] = ()
    #: For how long answers may be given again to who asks the very same, such as `10m`, or `off`.
    cache: str = "off"
    #: For how long its variants stay in memory after its last query, such as `10m`, or `always`.
    keep: str = "always"
    #: Whether nothing of it is planned to be in memory, since nobody asked for so long. `None` where that is not told.
    asleep: Optional[bool] = None
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Task":
        """From JSON."""
        variants = told.get("variants")
        return cls(
            name=told["name"],
            kind=told["kind"],
            metric=told.get("metric", ""),
            description=told.get("description", ""),
            accuracy_from=told.get("accuracy_from"),
            accuracy_to=told.get("accuracy_to"),
            defaults=dict(told.get("defaults") or {}),
            labels=tuple(told.get("labels") or ()),
            variants=tuple(Variant.of(one) for one in variants) if isinstance(variants, list) else (),
            cache=told.get("cache") or "off",
            keep=told.get("keep") or "always",
            asleep=told.get("asleep"),
            raw=told,
        )

    def frontier(self) -> List[Variant]:
        """The variants that no other beats in accuracy and in the time of one item, quickest first."""
        from ._frontier import frontier

        return frontier(self.variants)

    def frontier_svg(self) -> str:
        """Accuracy against latency of all variants, with the frontier, as SVG."""
        from ._frontier import svg

        return svg(self)

    def _repr_html_(self) -> str:
        from ._html import task

        return task(self)


@dataclass(frozen=True)
class Candidate:
    """A variant on a node, and what spoke for or against it."""

    variant: Optional[str]
    model: Optional[str]
    node: Optional[str]
    accuracy: float
    latency_ms: Optional[float]
    wait_ms: Optional[float]
    cost: Optional[float]
    #: By name, such as `below_floor`; `chosen` would be taken.
    finding: str
    #: The same for people.
    because: str
    notes: Tuple[str, ...] = ()
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Candidate":
        """From JSON."""
        same = ("variant", "model", "node", "accuracy", "latency_ms", "wait_ms", "cost", "finding", "because")
        given: Dict[str, Any] = {name: told.get(name) for name in same}
        return cls(**given, notes=tuple(told.get("notes") or ()), raw=told)


@dataclass(frozen=True)
class Explanation:
    """What would be decided for a query with these goals that came now."""

    task: str
    #: `send`, `wait`, `load` or `refuse`.
    action: str
    variant: Optional[str]
    node: Optional[str]
    predicted_ms: Optional[float]
    #: Where it would be refused: why, and what could be met.
    reason: Optional[str]
    error: Optional[str]
    nearest: Optional[Nearest]
    candidates: Tuple[Candidate, ...]
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Explanation":
        """From JSON."""
        decision: Mapping[str, Any] = told.get("decision") or {}
        return cls(
            task=told["task"],
            action=decision.get("action", ""),
            variant=decision.get("variant"),
            node=decision.get("node"),
            predicted_ms=decision.get("predicted_ms"),
            reason=decision.get("reason"),
            error=decision.get("error"),
            nearest=Nearest.of(decision.get("nearest")),
            candidates=tuple(Candidate.of(one) for one in told["candidates"]),
            raw=told,
        )

    @property
    def chosen(self) -> Optional[Candidate]:
        """The candidate that would be taken."""
        return next((one for one in self.candidates if one.finding == "chosen"), None)

    def __str__(self) -> str:
        if self.action == "refuse":
            could = f"\n  could be met, the other goals as they were: {self.nearest}" if self.nearest else ""
            return f"{self.task}: {self.error} ({self.reason}){could}"
        lines = [f"{self.task}: {self.action} {self.variant or ''} on {self.node or 'any node'}".rstrip()]
        for one in self.candidates:
            mark = "->" if one.finding == "chosen" else "  "
            latency = "      -" if one.latency_ms is None else f"{one.latency_ms:7.2f}"
            lines.append(f"{mark} {one.variant or '?':<20} {one.accuracy:.4f} {latency} ms  {one.because}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from ._html import explanation

        return explanation(self)


@dataclass(frozen=True)
class Verdict:
    """How feedback was taken."""

    #: `new`, `changed` or `said before`.
    stored: str
    task: str
    variant: Optional[str]
    #: `correct` or `wrong`.
    verdict: str
    #: What all verdicts on the variant come to.
    live_accuracy: Dict[str, Any]

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Verdict":
        """From JSON."""
        live = dict(told.get("live_accuracy") or {})
        return cls(told["stored"], told["task"], told.get("variant"), told["verdict"], live)


@dataclass(frozen=True)
class Model:
    """A version of a model."""

    task: str
    name: str
    version: int
    #: Whether it answers queries that pin nothing.
    default: bool
    architecture: str = ""
    licence: str = ""
    owner: str = ""
    #: By name.
    variants: Tuple[str, ...] = ()
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Model":
        """From JSON."""
        names = tuple(one if isinstance(one, str) else one["name"] for one in told.get("variants") or ())
        texts = {name: told.get(name) or "" for name in ("architecture", "licence", "owner")}
        return cls(told["task"], told["name"], told["version"], bool(told.get("default")), variants=names, raw=told, **texts)


@dataclass(frozen=True)
class DefaultVersion:
    """Which version of a model answers queries that pin nothing, after that was changed."""

    name: str
    #: That version, and the one before; `None` where there is none.
    default: Optional[int]
    before: Optional[int]
    #: What nobody has measured of it yet, in words.
    unknown: Tuple[str, ...] = ()
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "DefaultVersion":
        """From JSON."""
        return cls(told["name"], told.get("default"), told.get("before"), tuple(told.get("unknown") or ()), told)


@dataclass(frozen=True)
class Trial:
    """A version that is tried, or was."""

    id: str
    task: Optional[str]
    model: str
    version: int
    #: The default version that it is compared with.
    against: int
    #: How much of the task's queries it answers, between 0 and 1.
    share: float
    #: `running`, `promoted`, `rolled_back` or `stopped`.
    state: str
    #: Why it ended; `None` while it runs.
    cause: Optional[str]
    #: `too_few_yet`, `not_worse` or `worse`, by what was counted.
    verdict: str
    #: What is not known of the version, and what is lost by force; only told when it begins.
    told: Tuple[str, ...] = ()
    #: All figures.
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any], notes: Optional[Iterable[str]] = None) -> "Trial":
        """From JSON."""
        return cls(
            told["id"],
            told.get("task"),
            told["model"],
            told["version"],
            told["against"],
            told["share"],
            told["state"],
            told.get("cause"),
            told["verdict"]["verdict"],
            tuple(notes or ()),
            told,
        )


@dataclass(frozen=True)
class Registered:
    """A model that a server has taken in."""

    task: str
    name: str
    version: int
    #: Whether it answers queries that pin nothing; otherwise it is a candidate until it is promoted.
    default: bool
    #: By name.
    variants: Tuple[str, ...]
    #: Whether all of them were measured; in a cluster nodes do that when they have nothing else to do.
    measured: bool
    #: What looked wrong when they were measured.
    warnings: Tuple[str, ...]
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, task: str, told: Dict[str, Any]) -> "Registered":
        """From JSON."""
        variants = told["variants"]
        warnings = tuple(f"{one['name']}: {said}" for one in variants for said in one.get("warnings") or ())
        return cls(
            task=task,
            name=told["name"],
            version=told["version"],
            default=bool(told.get("default")),
            variants=tuple(one["name"] for one in variants),
            measured=all(one.get("measured") for one in variants),
            warnings=warnings,
            raw=told,
        )
