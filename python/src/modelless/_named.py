"""Keyword arguments by name: one that there is not is told with the one that was probably meant."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Collection, Iterable

from ._errors import InputError


def check(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuses the first that is not known."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise InputError(f"there is no {what} {name!r}; {meant}")
