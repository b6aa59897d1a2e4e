"""Goals as they go into a URL. What is out of range is told here, before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, Optional, TypedDict
from urllib.parse import quote

from . import _named
from ._errors import InputError

PREFER = ("accuracy", "cost", "latency")
FALLBACK = ("reject", "best_effort")


class GoalsGiven(TypedDict, total=False):
    """Goals as keyword arguments."""

    accuracy: Optional[float]
    latency_ms: Optional[float]
    max_cost: Optional[float]
    prefer: Optional[str]
    priority: Optional[int]
    fallback: Optional[str]
    model: Optional[str]
    variant: Optional[str]


@dataclass(frozen=True)
class Goals:
    """What is asked of an answer. All of it is optional; what is left out is as the task says."""

    accuracy: Optional[float] = None
    latency_ms: Optional[float] = None
    max_cost: Optional[float] = None
    prefer: Optional[str] = None
    priority: Optional[int] = None
    fallback: Optional[str] = None
    model: Optional[str] = None
    variant: Optional[str] = None

    def __post_init__(self) -> None:
        _number("accuracy", self.accuracy, 0.0, 1.0, "a number from 0 to 1")
        if self.latency_ms is not None:
            _number("latency_ms", self.latency_ms, 0.001, 3_600_000.0, "milliseconds, above 0 and at most 3600000")
        _number("max_cost", self.max_cost, 0.0, 1_000_000.0, "dollars per 1,000 queries")
        _word("prefer", self.prefer, PREFER)
        _word("fallback", self.fallback, FALLBACK)
        if self.priority is not None and (isinstance(self.priority, bool) or self.priority not in range(10)):
            raise InputError(f"priority is {self.priority!r}; expected 1 (highest) to 9, or 0 for the default level")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Goals":
        """From keyword arguments."""
        _named.check(given, _NAMES, "option or goal")
        return cls(**given)

    def query(self, latency_ms: Optional[float] = None) -> str:
        """As a query string, without its question mark; `latency_ms` in place of the one that was asked for."""
        given = self.given()
        if latency_ms is not None:
            given["latency_ms"] = latency_ms
        return "&".join(f"{name}={quote(_text(value), safe='')}" for name, value in given.items())

    def given(self) -> Dict[str, Any]:
        """Those that were given, by name."""
        return {name: value for name in _NAMES if (value := getattr(self, name)) is not None}


_NAMES = tuple(field.name for field in fields(Goals))


def _text(value: Any) -> str:
    # Never an exponent: a floor is a decimal.
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _number(name: str, value: Optional[float], least: float, most: float, expected: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}; expected {expected}")


def _word(name: str, value: Optional[str], words: "tuple[str, ...]") -> None:
    if value is not None and value not in words:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(words)}")
