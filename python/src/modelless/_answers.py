"""Answers as plain objects, with the decision that led to them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ._errors import ModellessError, ServerFailed
from ._optional import numpy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Numbers in tensors, by what the Open Inference Protocol calls them.
DTYPES = {
    "BOOL": "?",
    "UINT8": "u1",
    "INT8": "i1",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


@dataclass(frozen=True)
class Decision:
    """Who answered, why, and how long each part took. Of a list of texts: of all of them together, as `docs/python.md` says.

    Of an input of an offline job it has `variant`, `reason`, `cost` and `run_ms` (the device's time) only: a job keeps no more.
    """

    variant: str
    model: str
    reason: str
    query_id: str
    #: The variant's accuracy that the floor was compared with, and where that figure comes from.
    accuracy: Optional[float] = None
    accuracy_provenance: Optional[str] = None
    space: str = ""
    node: str = ""
    #: Queries in the batch.
    batch: int = 0
    #: Dollars per 1,000 such queries.
    cost: float = 0.0
    #: As expected when the query was sent (99th percentile), from arrival to the answer.
    predicted_ms: float = 0.0
    predicted_run_ms: float = 0.0
    queue_ms: float = 0.0
    decode_ms: float = 0.0
    prepare_ms: float = 0.0
    run_ms: float = 0.0
    #: From arrival at the server to the answer.
    total_ms: float = 0.0
    #: Of tasks whose answers may be given again: `hit` if this one was given before, else `miss`; of several texts `some` if not all were.
    cache: str = ""
    #: How many seconds ago it was given first; the oldest of several.
    age_s: Optional[int] = None
    #: By which number the server's log and traces name it; of several texts the slowest's.
    query: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "Decision":
        """From the headers of an answer."""
        get = headers.get

        def number(name: str) -> float:
            return float(get(name, "0"))

        accuracy = get("modelless-accuracy")
        cache = get("modelless-cache", "")
        # A cache between here and the server may tell an age, too: that is not meant.
        age = get("age") if cache in ("hit", "some") else None
        try:
            return cls(
                variant=headers["modelless-variant"],
                model=headers["modelless-model"],
                reason=get("modelless-reason", ""),
                query_id=get("modelless-query-id", ""),
                accuracy=None if accuracy is None else float(accuracy),
                accuracy_provenance=get("modelless-accuracy-provenance"),
                space=get("modelless-space", ""),
                node=get("modelless-node", ""),
                batch=int(get("modelless-batch", "0")),
                cost=number("modelless-cost"),
                predicted_ms=number("modelless-predicted-ms"),
                predicted_run_ms=number("modelless-predicted-run-ms"),
                queue_ms=number("modelless-queue-ms"),
                decode_ms=number("modelless-decode-ms"),
                prepare_ms=number("modelless-prepare-ms"),
                run_ms=number("modelless-run-ms"),
                total_ms=number("modelless-total-ms"),
                cache=cache,
                age_s=None if age is None else int(age),
                query=get("modelless-query", ""),
            )
        except (KeyError, ValueError) as error:
            raise foreign(f"its answer does not say who answered ({error})") from None

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:g}"
        # Of a job's input nothing but the device's time is told.
        took = f"in {self.total_ms:g} ms" if self.total_ms else f"{self.run_ms:g} ms of a device"
        return f"{self.variant}{accuracy}, {took}: {self.reason}"


@dataclass(frozen=True)
class Label:
    """A class with its score."""

    label: str
    score: float


@dataclass(frozen=True)
class Tensor:
    """One output of a `tensor` task. `data` is flat, row by row."""

    name: str
    datatype: str
    shape: Tuple[int, ...]
    data: List[Any]

    def numpy(self) -> "NDArray[Any]":
        """As an array of its type and shape."""
        np = numpy("an output as an array")
        array: NDArray[Any] = np.array(self.data, dtype=DTYPES.get(self.datatype, "O")).reshape(self.shape)
        return array

    def tolist(self) -> Any:
        """Nested lists of its shape."""
        return _nested(self.data, self.shape)


@dataclass(frozen=True, repr=False)
class Answer:
    """What a task answered. Which of its parts there are depends on the task's kind; asking for another is an `AnswerKind` error."""

    task: str
    #: The task's kind, such as `image-classification`; "" in a job's answers where the task is not there any more.
    kind: str
    #: The answer as the server wrote it.
    raw: Any
    decision: Decision

    @property
    def query_id(self) -> str:
        """Its signed name, for feedback."""
        return self.decision.query_id

    @property
    def labels(self) -> List[Label]:
        """Classes with their scores, best first."""
        if not self.kind.endswith("classification"):
            raise self._has_not("labels")
        return [Label(entry["label"], entry["score"]) for entry in self.raw]

    @property
    def label(self) -> str:
        """The best class."""
        return self.labels[0].label

    @property
    def score(self) -> float:
        """The score of the best class."""
        return self.labels[0].score

    @property
    def vector(self) -> List[float]:
        """The vector of a text."""
        if self.kind != "feature-extraction":
            raise self._has_not("vector")
        vector: List[float] = self.raw
        return vector

    @property
    def outputs(self) -> Dict[str, Tensor]:
        """The outputs of a `tensor` task by name."""
        if self.kind != "tensor":
            raise self._has_not("outputs")
        return {
            name: Tensor(name, about["datatype"], tuple(about["shape"]), about["data"])
            for name, about in self.raw["outputs"].items()
        }

    def numpy(self, output: Optional[str] = None) -> "NDArray[Any]":
        """The vector, or an output of a `tensor` task, as an array. The output may be left out where there is one."""
        if self.kind == "feature-extraction":
            np = numpy("a vector as an array")
            vector: NDArray[Any] = np.asarray(self.vector, dtype="<f4")
            return vector
        outputs = self.outputs
        if output is None and len(outputs) == 1:
            output = next(iter(outputs))
        if output not in outputs:
            raise AnswerKind(f"the outputs of task {self.task!r} are {', '.join(outputs)}; say which: numpy(NAME)")
        return outputs[output].numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> "NDArray[Any]":
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __iter__(self) -> Iterator[Any]:
        if self.kind == "tensor":
            return iter(self.outputs.values())
        return iter(self.vector if self.kind == "feature-extraction" else self.labels)

    def __repr__(self) -> str:
        if not self.kind:
            shown = f"{self.raw!r:.80}"  # of a job whose task is not there any more
        elif self.kind == "tensor":
            shown = ", ".join(f"{name}: {about['datatype']}{about['shape']}" for name, about in self.raw["outputs"].items())
        elif self.kind == "feature-extraction":
            shown = f"{len(self.vector)} numbers"
        else:
            shown = ", ".join(f"{entry.label} {entry.score:.4f}" for entry in self.labels)
        return f"<Answer {shown}; by {self.decision}>"

    def _repr_html_(self) -> str:
        from ._html import answer

        return answer(self)

    def _has_not(self, part: str) -> "AnswerKind":
        own = {"tensor": "outputs", "feature-extraction": "vector"}.get(self.kind, "labels")
        return AnswerKind(f"task {self.task!r} is of {self.kind}, so its answers have no {part}; they have {own}")


class AnswerKind(ModellessError, AttributeError):
    """Answers of this kind of task have no such part."""


def _nested(data: List[Any], shape: Tuple[int, ...]) -> Any:
    if not shape:
        return data[0]
    if len(shape) == 1:
        return list(data)
    step = len(data) // shape[0] if shape[0] else 0
    return [_nested(data[at * step : (at + 1) * step], shape[1:]) for at in range(shape[0])]


def foreign(why: str) -> ServerFailed:
    """Something else than a modelless server."""
    return ServerFailed(200, "foreign", f"this does not look like a modelless server: {why}", None, None)


def parse(task: str, kind: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """The answer to one input."""
    value = from_json(body)
    if kind == "text-classification" and isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]  # Hugging Face's form: a list for each text, of one too
    return Answer(task, kind, value, Decision.of(headers))


def parse_list(task: str, kind: str, headers: Mapping[str, str], body: bytes, count: int) -> List[Answer]:
    """The answers to a list of texts, each with the name of its own query."""
    values = from_json(body)
    decision = Decision.of(headers)
    names = [name.strip() for name in decision.query_id.split(",")]
    if not isinstance(values, list) or len(values) != count or len(names) != count:
        raise foreign(f"{count} texts were asked, and the answer is not a list of so many")
    if kind == "text-classification":
        values = [value[0] if value and isinstance(value[0], list) else value for value in values]
    return [Answer(task, kind, value, replace(decision, query_id=name)) for value, name in zip(values, names)]


def from_json(body: bytes) -> Any:
    """What a server of ours writes."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise foreign(f"its answer is not JSON ({error})") from None
