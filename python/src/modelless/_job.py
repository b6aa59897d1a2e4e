"""Offline jobs and what comes of them, as plain objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ._answers import Answer, Decision

#: The states in which nothing more comes of a job.
ENDED = ("done", "cancelled", "failed")
#: Why whoever answers an input of a job answers it.
SPARE = "an offline job's input, answered in spare time"


@dataclass(frozen=True)
class Job:
    """Many inputs of one task, answered when nothing else has to be."""

    #: Its number, by which it is asked for.
    id: int
    name: str
    task: str
    #: `receiving`, `running`, `done`, `cancelled` or `failed`.
    state: str
    #: Why it was cancelled or failed.
    why: Optional[str]
    #: Inputs it has, of which so many came to the server, have an answer, and have a reason why they have none.
    inputs: int
    received: int
    done: int
    failed: int
    #: In dollars: what was expected when it was made, and what its answers came to so far.
    estimate: Optional[float]
    cost: float
    #: Seconds of devices.
    device_s: float
    #: Whether its deadline is over, or was when it ended.
    late: bool
    #: Seconds since 1970.
    deadline: Optional[float]
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Job":
        """From JSON."""
        deadline = told.get("deadline_unix_us")
        return cls(
            id=told["job"],
            name=told["name"],
            task=told["task"],
            state=told["state"],
            why=told.get("why"),
            inputs=told["inputs"],
            received=told["received"],
            done=told["done"],
            failed=told["failed"],
            estimate=told.get("estimate_usd"),
            cost=float(told.get("cost_usd") or 0.0),
            device_s=float(told.get("device_s") or 0.0),
            late=bool(told.get("late")),
            deadline=None if deadline is None else deadline / 1e6,
            raw=told,
        )

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in ENDED

    def _repr_html_(self) -> str:
        from ._html import job

        return job(self)


@dataclass(frozen=True)
class JobEstimate:
    """What a job would cost, by what is known; `None` is not known."""

    #: Dollars.
    cost: Optional[float]
    #: Seconds of devices.
    device_s: Optional[float]
    #: With which variant that is reckoned.
    variant: Optional[str]


@dataclass(frozen=True)
class JobOutput:
    """How one input of a job ended: with an answer, or with a reason why there is none."""

    #: The input's place, from 0, and what it was called; "" where its turn never came.
    at: int
    name: str
    answer: Optional[Answer]
    #: In one word, and for people. `job_cancelled` and `job_failed` are those of inputs whose turn never came.
    reason: Optional[str]
    message: Optional[str]
    raw: Dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any], task: str, kind: str) -> "JobOutput":
        """From JSON."""
        answer = None
        if "answer" in told:
            answer = Answer(task, kind, _bare(kind, told["answer"]), _decision(told))
        return cls(told["at"], told["name"], answer, told.get("reason"), told.get("message"), told)


    @classmethod
    def never(cls, at: int, job: Job) -> "JobOutput":
        """Of an input whose turn never came. The server does not tell what such a one was called."""
        why = "" if job.why is None else f" ({job.why})"
        return cls(at, "", None, f"job_{job.state}", f"the job ended before it was its turn{why}")


@dataclass(frozen=True)
class JobResults:
    """A job that has ended, with how each of its inputs did, in their order."""

    job: Job
    outputs: List[JobOutput]

    def __iter__(self) -> Iterator[JobOutput]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def answers(self) -> List[Optional[Answer]]:
        """One for each input, in their order; `None` where there is none."""
        by_place = {output.at: output.answer for output in self.outputs}
        return [by_place.get(at) for at in range(self.job.inputs)]


def _bare(kind: str, value: Any) -> Any:
    # Hugging Face's form: a list for each text, of one too.
    return value[0] if kind == "text-classification" and value and isinstance(value[0], list) else value


def _decision(told: Mapping[str, Any]) -> Decision:
    cost, device = told.get("cost_usd_per_1k"), told.get("device_ms")
    return Decision(
        variant=told.get("variant") or "",
        model="",
        reason=SPARE,
        query_id="",
        cost=float(cost or 0.0),
        run_ms=float(device or 0.0),
    )
