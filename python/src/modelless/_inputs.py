"""What people have (arrays, pictures, paths, texts) as what a task takes.

Which of it a value is depends on the task: a `str` is a text to one and the path of a picture to another. Nothing is guessed
beyond that: what would have to be scaled, wrapped or cut to fit is refused with what was expected.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Protocol, Tuple, Union

from ._answers import DTYPES
from ._errors import InputError
from ._optional import numpy, pillow
from ._png import png

class Array(Protocol):
    """numpy's, torch's, and what else can be read as numpy's."""

    @property
    def shape(self) -> Any:
        """Its extents."""

    def __array__(self) -> Any:
        """As numpy's."""


class Picture(Protocol):
    """PIL's."""

    @property
    def mode(self) -> str:
        """How its pixels are kept."""

    def save(self, fp: Any, format: Optional[str] = ..., **params: Any) -> None:
        """Writes it."""


if TYPE_CHECKING:
    PathLike = os.PathLike[str]
else:
    PathLike = os.PathLike

#: One input of any kind of task.
Input = Union[str, PathLike, bytes, bytearray, memoryview, Array, Picture, Mapping[str, Any]]

JSON = "application/json"
RAW = "application/octet-stream"


@dataclass(frozen=True)
class Spec:
    """One tensor of one item."""

    name: str
    datatype: str
    shape: Tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TaskForm:
    """As much of a task as is needed to write its inputs."""

    name: str
    kind: str
    inputs: Tuple[Spec, ...]
    #: The bound on the latency of queries that give none.
    latency_ms: float

    @property
    def takes_texts(self) -> bool:
        """Whether its inputs are texts."""
        return self.kind in ("text-classification", "feature-extraction")

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "TaskForm":
        """From the server's description."""
        inputs = tuple(Spec(one["name"], one["datatype"], tuple(one["shape"])) for one in told.get("inputs") or ())
        return cls(told["name"], told["kind"], inputs, float((told.get("defaults") or {}).get("latency_ms") or 10_000.0))


@dataclass(frozen=True)
class Body:
    """A body and what it is."""

    content: bytes
    media: str


def body(task: TaskForm, value: Any, parameters: Optional[Mapping[str, Any]]) -> Body:
    """One input as the body of a query."""
    if task.takes_texts:
        return _text_body(text(task, value), parameters)
    if task.kind == "tensor":
        return _tensors(task, value, parameters)
    return _picture_body(picture(task, value), parameters)


def is_light(task: TaskForm, value: Any) -> bool:
    """Whether it can be written at once: no file to read, no picture to pack."""
    if isinstance(value, str):
        return task.takes_texts
    return isinstance(value, (bytes, bytearray)) or (task.kind == "tensor" and not isinstance(value, os.PathLike))


def texts_body(task: TaskForm, values: List[Any], parameters: Optional[Mapping[str, Any]]) -> Body:
    """Several texts in one body."""
    texts = []
    for at, value in enumerate(values):
        try:
            texts.append(text(task, value))
        except InputError as error:
            raise error.at(at)
    return _json({"inputs": texts}, parameters)


def native(task: TaskForm, value: Any) -> bytes:
    """One input as a labelled set has it: the bytes of the task's own form."""
    if task.takes_texts:
        return _encoded(text(task, value))
    if task.kind == "tensor":
        written = _tensors(task, value, None)
        if written.media == JSON:
            raise InputError("a labelled set of tensors takes arrays or their raw bytes")
        return written.content
    return picture(task, value)


def text(task: TaskForm, value: Any) -> str:
    """A text, or what stands in a file."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return _decoded(_read(value), repr(os.fspath(value)))
    if isinstance(value, (bytes, bytearray)):
        return _decoded(bytes(value), "this text")
    raise _unfit(task, value, "a str, UTF-8 bytes, or a pathlib.Path of a file with a text")


def picture(task: TaskForm, value: Any) -> bytes:
    """The bytes of a JPEG or PNG file."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (str, os.PathLike)):
        return _read(value)
    if is_array(value):
        return _pixels(task, value)
    if hasattr(value, "save") and hasattr(value, "mode"):
        return _pillow_png(value)
    raise _unfit(task, value, "a path, the bytes of a JPEG or PNG, a PIL image, or an array of uint8")


def is_array(value: Any) -> bool:
    """An array of numpy, or what gives one (a torch tensor)."""
    return hasattr(value, "__array__") and hasattr(value, "shape") and not hasattr(value, "save")


def _read(path: Any) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # the latter for a name that no file can have
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read {os.fspath(path)!r}: {why}") from error


def _decoded(content: bytes, what: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8: {error}") from error


def _encoded(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"this text has no form in UTF-8: {error}") from error


def _unfit(task: TaskForm, value: Any, expected: str) -> InputError:
    return InputError(f"task {task.name!r} ({task.kind}) cannot take a {type(value).__name__}; expected {expected}")


def _text_body(value: str, parameters: Optional[Mapping[str, Any]]) -> Body:
    return _json({"inputs": value}, parameters) if parameters else Body(_encoded(value), "text/plain")


def _picture_body(value: bytes, parameters: Optional[Mapping[str, Any]]) -> Body:
    return _json({"inputs": base64.b64encode(value).decode()}, parameters) if parameters else Body(value, RAW)


def _json(content: Dict[str, Any], parameters: Optional[Mapping[str, Any]]) -> Body:
    if parameters:
        content["parameters"] = dict(parameters)
    try:
        return Body(json.dumps(content, allow_nan=False).encode(), JSON)
    except (TypeError, ValueError) as error:
        raise InputError(f"this cannot be written as JSON: {error}") from error


def _pixels(task: TaskForm, value: Any) -> bytes:
    array = numpy("an array as a picture").asarray(value)
    if array.dtype != "uint8":
        hint = "; times 255 and astype('uint8') where it is between 0 and 1" if array.dtype.kind == "f" else ""
        raise InputError(f"a picture is an array of uint8, and this one is {array.dtype}{hint}")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 2, 3, 4) or 0 in array.shape:
        hint = ": for several pictures give a list" if array.ndim == 4 else ""
        raise InputError(
            f"a picture has the shape (height, width) or (height, width, channels), and this one {array.shape}{hint}"
        )
    height, width, channels = array.shape
    return png(array.tobytes(), width, height, channels)


def _pillow_png(image: Any) -> bytes:
    turned = pillow("a PIL image").exif_transpose
    file = io.BytesIO()
    try:
        # A file that was opened keeps its orientation beside the pixels, and a PNG of them would lose it.
        image = turned(image)
        if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"):
            image = image.convert("RGB")
        image.save(file, "PNG", compress_level=1)
    except Exception as error:  # pixels are read only now, and each of PIL's readers has errors of its own
        raise InputError(f"this picture cannot be read: {error}") from error
    return file.getvalue()


def _tensors(task: TaskForm, value: Any, parameters: Optional[Mapping[str, Any]]) -> Body:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Body(bytes(value), RAW)
    if isinstance(value, os.PathLike):
        return Body(_read(value), RAW)
    names = [spec.name for spec in task.inputs]
    if not isinstance(value, Mapping):
        if len(names) != 1:
            raise InputError(f"task {task.name!r} has the inputs {', '.join(names)}: give a dict of arrays by name")
        value = {names[0]: value}
    if sorted(value) != sorted(names):
        raise InputError(f"task {task.name!r} has the inputs {', '.join(names)}, and these are {', '.join(map(str, value))}")
    if not parameters and all(is_array(value[name]) for name in names):
        return Body(b"".join(_raw(spec, value[spec.name]) for spec in task.inputs), RAW)
    return _json({"inputs": {spec.name: _listed(spec, value[spec.name]) for spec in task.inputs}}, parameters)


def _listed(spec: Spec, value: Any) -> Any:
    return _fitting(spec, value).tolist() if is_array(value) else value


def _raw(spec: Spec, value: Any) -> bytes:
    array = _fitting(spec, value)
    if spec.datatype == "BYTES":
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
        return b"".join(struct.pack("<I", len(item)) + item for item in texts)
    content: bytes = array.tobytes()
    return content


def _fitting(spec: Spec, value: Any) -> Any:
    """An array of the input's type and shape; axes of length 1 and flat ones may differ."""
    np = numpy("an array as a tensor")
    if hasattr(value, "detach"):
        value = value.detach().cpu()  # a torch tensor that remembers how it came to be, or lies on a GPU
    array = np.asarray(value)
    bare = tuple(extent for extent in array.shape if extent != 1)
    if bare != tuple(extent for extent in spec.shape if extent != 1) and array.shape != (spec.elements,):
        hint = ": for several inputs give a list, such as list(array)" if array.shape[1:] == spec.shape else ""
        raise InputError(f"input {spec.name!r} has the shape {spec.shape}, and this one {array.shape}{hint}")
    array = array.reshape(spec.shape)
    if spec.datatype == "BYTES":
        return array
    wanted = np.dtype(DTYPES[spec.datatype])
    if array.dtype == wanted:
        return array
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise InputError(f"input {spec.name!r} is of {spec.datatype}, and {array.dtype} does not become that by itself")
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    whole = wanted.kind in "iub"
    lost = (cast != array) if whole else (np.isinf(cast) & ~np.isinf(array))
    if lost.any():
        raise InputError(f"input {spec.name!r} is of {spec.datatype}, which cannot hold {array[lost].ravel()[0]}")
    return cast
