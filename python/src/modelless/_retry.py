"""Whether and when to ask again.

A client that asks again whenever it hears no doubles the load of a server that has too much already. So there is a budget over
all calls: each one that is made earns a tenth of a retry, ten may be saved up, and without any left a refusal is told at once.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import Callable, Optional

from ._errors import Refused, Unreachable


@dataclass(frozen=True)
class Retries:
    """How a client asks again. `Retries(attempts=1)` never does."""

    #: How often a call is made at most.
    attempts: int = 3
    #: Retries that may be saved up.
    saved: float = 10.0
    #: What every call adds.
    earned: float = 0.1
    #: Seconds before the first retry; doubled each time, and any time from none to that is taken.
    pause: float = 0.05
    #: The longest such pause.
    longest: float = 2.0


class Budget:
    """The retries that are left. Shared by the threads that use a client."""

    def __init__(self, settings: Retries, chance: Callable[[], float] = random.random):
        self.settings = settings
        self._chance = chance
        self._left = settings.saved
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Retries, and the part of one that was earned."""
        return self._left

    def called(self) -> None:
        """A call is made for the first time."""
        with self._lock:
            self._left = min(self._left + self.settings.earned, self.settings.saved)

    def again(self, error: Exception, attempt: int, left: float) -> Optional[float]:
        """So many seconds to wait before the next attempt, or `None`: tell the error. `left` is the time there is."""
        if attempt >= self.settings.attempts:
            return None
        pause = min(self.settings.pause * 2.0 ** (attempt - 1), self.settings.longest) * self._chance()
        if isinstance(error, Refused) and error.retry_after is not None:
            pause = max(error.retry_after, pause)
        if pause >= left:
            return None
        with self._lock:
            if self._left < 1.0:
                return None
            self._left -= 1.0
        return pause


def may_help(error: Exception, repeatable: bool) -> bool:
    """Whether the same request may be answered otherwise. One that may not be made twice only if nothing has come of it for certain."""
    if isinstance(error, Refused):
        # Where the store went away, or somebody between here and the server speaks, it may have been done all the same.
        unsure = error.reason == "store_unavailable" or error.reason.startswith("http_")
        return error.status in (429, 503) and (repeatable or not unsure)
    if not isinstance(error, Unreachable) or isinstance(error, TimeoutError):
        return False
    return repeatable or not error.maybe_done
