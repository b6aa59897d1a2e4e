"""How far an upload is: a bar of tqdm, or whatever a program does with it."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from ._optional import tqdm

#: `True` for a bar; or a function that is told what is sent, how many bytes of it were, and how many there are.
Progress = Union[bool, Callable[[str, int, int], None], None]


class Watched:
    """One file on its way."""

    def __init__(self, progress: Progress, what: str, size: int):
        self._what = what
        self._size = size
        self._sent = 0
        self._tell = progress if callable(progress) else None
        self._bar: Optional[Any] = None
        if progress is True:
            self._bar = tqdm("a progress bar")(total=size, desc=what, unit="B", unit_scale=True, unit_divisor=1024)

    def begin(self) -> None:
        """From the beginning, once more where an upload broke."""
        self._sent = 0
        if self._bar is not None:
            self._bar.reset()

    def sent(self, count: int) -> None:
        """So many bytes more."""
        self._sent += count
        if self._bar is not None:
            self._bar.update(count)
        if self._tell is not None:
            self._tell(self._what, self._sent, self._size)

    def end(self) -> None:
        """It is there."""
        if self._bar is not None:
            self._bar.close()
