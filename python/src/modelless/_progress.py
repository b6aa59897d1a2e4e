"""How far something is: a bar of tqdm, or whatever a program does with it."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from ._optional import tqdm

#: `True` for a bar; or a function that is told what it is, how much of it (bytes, or inputs) was sent or has ended, and how much there is.
Progress = Union[bool, Callable[[str, int, int], None], None]


class Watched:
    """One file, or one job, on its way."""

    def __init__(self, progress: Progress, what: str, size: int, unit: str = "B"):
        self._what = what
        self._size = size
        self._sent = 0
        self._tell = progress if callable(progress) else None
        self._bar: Optional[Any] = None
        if progress is True:
            scale = {"unit_scale": True, "unit_divisor": 1024} if unit == "B" else {}
            self._bar = tqdm("a progress bar")(total=size, desc=what, unit=unit, **scale)

    def begin(self) -> None:
        """From the beginning, once more where an upload broke."""
        self._sent = 0
        if self._bar is not None:
            self._bar.reset()

    def sent(self, count: int) -> None:
        """So many more."""
        self._sent += count
        if self._bar is not None:
            self._bar.update(count)
        if self._tell is not None:
            self._tell(self._what, self._sent, self._size)

    def end(self) -> None:
        """It is there."""
        if self._bar is not None:
            self._bar.close()
