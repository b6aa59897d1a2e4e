"""Every "no", by a class of its own where a program would act otherwise on it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional


class ModellessError(Exception):
    """Whatever this package raises by itself."""

    #: Where an input of a list was at fault, its place in the list.
    index: Optional[int] = None

    def at(self, index: int) -> "ModellessError":
        """The same, told of one input of a list."""
        self.index = index
        return self

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.index is None else f"input {self.index} of the list: {text}"


class InputError(ModellessError, ValueError):
    """What was given cannot be sent: nothing was asked."""


class MissingPackage(ModellessError, ImportError):
    """An optional package is needed for this and is not installed."""


class Unreachable(ModellessError, ConnectionError):
    """No answer came: no connection, or it broke."""

    #: Whether the request may have reached the server, and what it asks for may have been done.
    maybe_done: bool = True


class Timeout(Unreachable, TimeoutError):
    """No answer came in the time there was."""


@dataclass(frozen=True)
class Nearest:
    """The nearest goals that could be met, each with the others as they were."""

    accuracy: Optional[float] = None
    latency_ms: Optional[float] = None
    max_cost: Optional[float] = None

    def __str__(self) -> str:
        return " or ".join(f"{name}={value:g}" for name, value in vars(self).items() if value is not None)

    @classmethod
    def of(cls, body: Any) -> "Optional[Nearest]":
        """From an error's body, where that names any."""
        known = {name: body.get(name) for name in ("accuracy", "latency_ms", "max_cost")} if isinstance(body, dict) else {}
        numbers = {name: float(value) for name, value in known.items() if isinstance(value, (int, float))}
        return cls(**numbers) if numbers else None


class Refused(ModellessError):
    """The server said no, and why."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        nearest: Optional[Nearest],
        retry_after: Optional[float],
        query: str = "",
    ):
        super().__init__(message)
        #: The HTTP status.
        self.status = status
        #: The refusal's name, such as `floor_unreachable`.
        self.reason = reason
        #: What happened, for people.
        self.message = message
        #: What could be met instead.
        self.nearest = nearest
        #: After how many seconds another try makes sense.
        self.retry_after = retry_after
        #: By which number the server's log and traces name a query that was refused; "" of what is none.
        self.query = query

    def __str__(self) -> str:
        text = f"{super().__str__()} ({self.reason})"
        if self.nearest is not None:
            text += f"\n  could be met, the other goals as they were: {self.nearest}"
        return text

    def of_list(self, first: int) -> "Refused":
        """Told of a text in a request that began with the `first` of a list: with its place in all of the list."""
        told = re.match(r"text (\d+) of the list: (.*)", self.message, re.DOTALL)
        if told is not None:
            self.message = told[2]
            self.args = (self.message,)
            self.at(first + int(told[1]) - 1)
        return self

    def __reduce__(self) -> "tuple[Any, ...]":
        return type(self), (self.status, self.reason, self.message, self.nearest, self.retry_after, self.query), self.__dict__


class GoalsUnreachable(Refused):
    """Nothing that is registered meets these goals; `nearest` says what could be met."""


class TooLate(Refused):
    """It was taken in and could not be answered within its latency bound."""


class Overloaded(Refused):
    """Not now: too many queries, a model that is being loaded, a server that ends, an output space that changed."""


class NotFound(Refused):
    """There is no such task, model or query."""


class BadRequest(Refused):
    """The request or its input does not follow its form."""


class NotAllowed(Refused):
    """There is no key on the request, it is not known, or it may not do this."""


class Conflict(Refused):
    """It is there already, in use, or was changed since."""


class InputFailed(Refused):
    """The model itself cannot process this input."""


class ServerFailed(Refused):
    """The server failed, or what answered is no modelless server."""


_BY_REASON: Dict[str, type] = {
    "floor_unreachable": GoalsUnreachable,
    "latency_unreachable": GoalsUnreachable,
    "cost_unreachable": GoalsUnreachable,
    "pin_unusable": GoalsUnreachable,
}
_BY_STATUS: Dict[int, type] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    422: InputFailed,
    429: Overloaded,
    503: Overloaded,
    504: TooLate,
}


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """The error that an answer with this status is."""
    try:
        told = json.loads(body)
    except ValueError:
        told = None
    known = told if isinstance(told, dict) else {}
    message, reason = known.get("error"), known.get("reason")
    if not isinstance(message, str):
        excerpt = body[:200].decode("utf-8", "replace").strip()
        message = f"the server answered {status}: {excerpt or 'nothing'}"
    if not isinstance(reason, str):
        reason = f"http_{status}"
    by_status = _BY_STATUS.get(status, BadRequest if 400 <= status < 500 else ServerFailed)
    kind = _BY_REASON.get(reason, by_status)
    wait = headers.get("retry-after", "")
    after = float(wait) if wait.isdigit() else None
    error: Refused = kind(status, reason, message, Nearest.of(known.get("nearest")), after, headers.get("modelless-query", ""))
    return error
