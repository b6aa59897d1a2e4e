"""Labelled sets as a server takes them: a line of JSON for each item, gzipped.

The same files as `modelless model register` reads: `.jsonl`, `.csv` of FILE,LABEL, and the IDX pair of Fashion-MNIST; and what
only Python has, pairs of an input and its label.
"""

from __future__ import annotations

import base64
import gzip
import json
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Tuple, Union

from . import _inputs
from ._errors import InputError
from ._inputs import TaskForm
from ._png import png

#: An input in the task's own form, and the label as the task writes it or its place in the task's labels.
Item = Tuple[bytes, Union[int, str]]


def pack(task: TaskForm, labels: List[str], given: Any, into: Path) -> None:
    """Writes a set to a file. The same set gives the same bytes, so that it need not be sent twice."""
    if isinstance(given, (str, Path)):
        path = Path(given)
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            into.write_bytes(_read(path))
            return
        items = _csv(path, labels) if path.suffix == ".csv" else _idx(task, path)
    else:
        items = _pairs(task, given)
    count = 0
    with open(into, "wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for content, label in items:
            packed.write(_line(content, _checked(label, labels, count)))
            count += 1
    if count == 0:
        raise InputError("the labelled set is empty")


def _line(content: bytes, label: Union[int, str]) -> bytes:
    try:
        line = {"label": label, "text": content.decode("utf-8")}
    except UnicodeDecodeError:
        line = {"label": label, "input": base64.b64encode(content).decode()}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _checked(label: Union[int, str], labels: List[str], at: int) -> Union[int, str]:
    # Labels of a task without any only say what belongs together.
    if not labels:
        return label
    if (isinstance(label, str) and label in labels) or (isinstance(label, int) and 0 <= label < len(labels)):
        return label
    raise InputError(f"item {at} of the labelled set has the label {label!r}, which is none of the task's")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _text(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error}") from error


def _pairs(task: TaskForm, given: Iterable[Any]) -> Iterator[Item]:
    for at, pair in enumerate(given):
        try:
            value, label = pair
        except (TypeError, ValueError):
            raise InputError(f"item {at} of the labelled set is no pair of an input and its label") from None
        try:
            yield _inputs.native(task, value), _plain(label)
        except InputError as error:
            raise InputError(f"item {at} of the labelled set: {error}") from error


def _plain(label: Any) -> Union[int, str]:
    if isinstance(label, str):
        return label
    with suppress(TypeError, ValueError, OverflowError):
        whole = int(label)  # numpy's whole numbers are none of Python's
        if whole == label:
            return whole
    raise InputError(f"the label {label!r} is neither a whole number nor a text")


def _csv(path: Path, labels: List[str]) -> Iterator[Item]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        # The last comma: files may have some in their names, labels of a sensible task do not.
        file, comma, label = line.rpartition(",")
        if not comma:
            raise InputError(f"{path}: line {number}: expected FILE,LABEL: {line!r}")
        label = label.strip()
        known: Union[int, str] = label if label in labels or not label.isdigit() else int(label)
        yield _read(path.parent / file.strip()), known


def _idx(task: TaskForm, path: Path) -> Iterator[Item]:
    if "images-idx3" not in path.name:
        raise InputError(f"{path}: expected *images-idx3-ubyte or *images-idx3-ubyte.gz, a .csv, a .jsonl, or pairs in memory")
    (count, height, width), pixels = _extents(path, 3)
    labels_path = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    (named,), classes = _extents(labels_path, 1)
    if named != count:
        raise InputError(f"{path} has {count} pictures and {labels_path} {named} labels")
    step = height * width
    for at in range(count):
        yield _grey(task, pixels[at * step : (at + 1) * step], width, height), classes[at]


def _grey(task: TaskForm, pixels: bytes, width: int, height: int) -> bytes:
    if task.kind == "image-classification":
        return png(pixels, width, height, 1)
    fits = task.kind == "tensor" and len(task.inputs) == 1 and task.inputs[0].elements == len(pixels)
    if fits and task.inputs[0].datatype == "FP32":
        # Rounded to 32 bits once, as the server's own reader does it.
        return b"".join(struct.pack("<f", pixel / 255.0) for pixel in pixels)
    if fits and task.inputs[0].datatype == "UINT8":
        return pixels
    raise InputError(f"task {task.name!r} ({task.kind}) cannot take grey pictures of {width} x {height} pixels")


def _extents(path: Path, axes: int) -> Tuple[List[int], bytes]:
    content = _read(path)
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} cannot be unpacked: {error}") from error
    if content[:4] != bytes((0, 0, 8, axes)):
        raise InputError(f"{path} does not begin like an IDX file of bytes with {axes} axes")
    shape = list(struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes]))
    data = content[4 + 4 * axes :]
    total = 1
    for extent in shape:
        total *= extent
    if len(data) != total:
        raise InputError(f"{path} holds {len(data)} bytes, and its extents {shape} ask for {total}")
    return shape, data
