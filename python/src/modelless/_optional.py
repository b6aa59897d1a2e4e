"""Packages that may be missing. Nothing of them is imported before it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ._errors import MissingPackage


def _need(module: str, package: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackage(f"{what} needs {package}, which cannot be imported ({error}): pip install {package}") from None


def numpy(what: str) -> Any:
    """numpy, for `what`."""
    return _need("numpy", "numpy", what)


def pillow(what: str) -> Any:
    """`PIL.ImageOps`, for `what`."""
    return _need("PIL.ImageOps", "pillow", what)


def torch(what: str) -> Any:
    """torch, for `what`."""
    return _need("torch", "torch", what)


def tqdm(what: str) -> Any:
    """`tqdm.auto.tqdm`, for `what`."""
    return _need("tqdm.auto", "tqdm", what).tqdm


def toml(text: str) -> Any:
    """A TOML document."""
    try:
        return import_module("tomllib").loads(text)
    except ImportError:
        return import_module("tomli").loads(text)
