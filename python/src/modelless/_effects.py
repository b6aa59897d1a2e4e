"""What operations ask of the world. They are written once, as generators; a driver performs what they yield, blocking or not.

An operation never touches a socket, a clock or a thread by itself, so the two clients cannot come to differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Generator, List, Optional, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Upload:
    """A body that is read while it is sent."""

    path: str
    size: int
    #: Told of every piece that was sent.
    sent: Callable[[int], None]


@dataclass(frozen=True)
class Send:
    """A request. Answered with a `Reply`, or by an `Unreachable` that is thrown in."""

    method: str
    target: str
    timeout: float
    content: bytes = b""
    media: Optional[str] = None
    upload: Optional[Upload] = None
    #: No answer that was given before will do.
    fresh: bool = False


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class Now:
    """What time it is, in seconds that only rise."""


@dataclass(frozen=True)
class Work:
    """Something that reads files or computes for long. Answered with what it gives."""

    run: Callable[[], Any]


@dataclass(frozen=True)
class Together:
    """Operations to be run side by side, so many at a time. Answered with their results, in their order."""

    operations: List["Operation[Any]"] = field(default_factory=list)
    at_once: int = 16


Operation = Generator[Any, Any, T]
