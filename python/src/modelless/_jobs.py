"""Offline jobs: inputs are sent some at a time, the server answers them in its spare time, and their answers are read page by page."""

from __future__ import annotations

import base64
import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from . import _answers, _inputs
from ._core import USUAL, Core, ok
from ._effects import Now, Operation, Pause, Send, Together, Work
from ._errors import Conflict, InputError, ModellessError, NotFound, Overloaded, Timeout, Unreachable
from ._goals import Goals
from ._inputs import TaskForm
from ._job import Job, JobEstimate, JobOutput
from ._progress import Progress, Watched

#: Inputs, and bytes of them, that go with one request.
INPUTS_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 << 20
#: Such requests that are under way.
CHUNKS_AT_ONCE = 4
#: Outputs of one page, and places of inputs that have not come.
PAGE = 500
MISSING = 1_000
#: Letters of an input's name.
NAME_MAX = 250
#: Between two looks at a job, in seconds: at first, and later.
SOON, LATER = 0.05, 2.0
#: For so many seconds a server that was there is waited for, while a job is sent or waited for.
PATIENCE = 600.0
#: What a look at a job may take, however little is left of the time to wait for it.
LEAST = 1.0
#: And so long for a job to be cancelled by who is interrupted.
LAST_WORD = 5.0

Deadline = Union[float, str, timedelta, None]
#: What a job may be asked with: a `Job`, or its number.
Which = Union[Job, int]


class JobNotSent(Unreachable):
    """The server went away while a job's inputs were sent. `job` is its number: `client.jobs.send(job, inputs)` goes on."""

    def __init__(self, message: str, job: int):
        super().__init__(message)
        self.job = job

    def __reduce__(self) -> "tuple[Any, ...]":
        return type(self), (self.args[0], self.job)


@dataclass(frozen=True)
class Wanted:
    """What is asked for with a job."""

    task: str
    inputs: Any
    goals: Goals
    name: Optional[str] = None
    deadline: Deadline = None
    count: Optional[int] = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = False


def submit(core: Core, wanted: Wanted) -> Operation[Job]:
    """Makes a job, sends its inputs, and starts it."""
    form = yield from core.form(wanted.task)
    source: Source = yield Work(lambda: Source.of(form, wanted.inputs, wanted.count))
    body: Dict[str, Any] = {"task": wanted.task, "inputs": source.count, "goals": _goals(wanted.goals)}
    if wanted.name is not None:
        body["name"] = wanted.name
    if wanted.deadline is not None:
        body["deadline_s"] = math.ceil(seconds(wanted.deadline))
    # Not made twice: of two jobs one would wait for its inputs for a week.
    reply = ok((yield Send("POST", "/v1/jobs", USUAL, json.dumps(body).encode(), _inputs.JSON)))
    job = Job.of(_answers.from_json(reply.body))
    return (yield from _abandoned(core, job.id, _send(core, form, job, source, wanted)))


def send(core: Core, which: Which, wanted: Wanted) -> Operation[Job]:
    """Sends what has not come of a job's inputs, and starts it."""
    job = yield from get(core, which)
    if job.state != "receiving":
        return job
    form = yield from core.form(job.task)
    source: Source = yield Work(lambda: Source.of(form, wanted.inputs, wanted.count, job.inputs))
    if source.count != job.inputs:
        raise InputError(f"job {job.id} has {job.inputs} inputs, and these are {source.count}: give the ones it was made for")
    try:
        return (yield from _send(core, form, job, source, wanted))
    except Unreachable as error:
        raise _not_sent(job.id, error) from error


def _abandoned(core: Core, job: int, sending: Operation[Job]) -> Operation[Job]:
    """What cannot be sent is not left lying about; what could not be sent yet is."""
    try:
        return (yield from sending)
    except Unreachable as error:
        raise _not_sent(job, error) from error
    except GeneratorExit:
        raise  # nobody performs anything any more
    except Exception:
        # Also what a program's iterator or its progress raises: nobody would know of the job.
        with suppress(ModellessError):  # the first error says more
            yield from core.call("POST", f"/v1/jobs/{job}/cancel")
        raise
    except BaseException:
        # Ctrl-C, or an awaited call that was cancelled: no time for a second try.
        with suppress(ModellessError):
            yield Send("POST", f"/v1/jobs/{job}/cancel", LAST_WORD)
        raise


def _not_sent(job: int, error: Exception) -> JobNotSent:
    return JobNotSent(f"job {job} was not sent whole: {error}. `client.jobs.send({job}, inputs)` goes on with what has not come", job)


def _send(core: Core, form: TaskForm, job: Job, source: "Source", wanted: Wanted) -> Operation[Job]:
    watched = Watched(wanted.progress, f"job {job.id}: inputs", job.inputs, "inputs")
    try:
        missing = yield from _missing(core, job.id)
        watched.sent(job.inputs - len(missing.places) if missing.all_told else 0)
        while missing.places:
            writer = Chunks(form, source, wanted.parameters, missing.places)
            while True:
                chunks: List[Chunk] = yield Work(writer.several)
                if not chunks:
                    break
                # The server takes them in any order, each as a whole or not at all.
                path = f"/v1/jobs/{job.id}/inputs"
                sending = [_patiently(core, "POST", path, chunk.content) for chunk in chunks]
                yield Together(sending, min(CHUNKS_AT_ONCE, core.at_once))
                for chunk in chunks:
                    watched.sent(chunk.inputs)
            missing = yield from _missing(core, job.id)
    finally:
        watched.end()
    yield Work(source.is_over)
    try:
        told = yield from _patiently(core, "POST", f"/v1/jobs/{job.id}/start", None)
    except Conflict:
        # Asked again after an answer that was lost, it may have ended meanwhile.
        return (yield from get(core, job.id))
    return Job.of(told)


@dataclass
class Missing:
    """Places of inputs that have not come, in order: the first of them, or all."""

    places: List[int]
    all_told: bool


def _missing(core: Core, job: int) -> Operation[Missing]:
    told = yield from _patiently(core, "GET", f"/v1/jobs/{job}/missing?limit={MISSING}", None)
    return Missing(list(told["missing"]), len(told["missing"]) < MISSING)


def _patiently(
    core: Core, method: str, path: str, content: Optional[bytes], left: Optional[float] = None
) -> Operation[Any]:
    """A request that may be made twice, again and again while the server is away or busy: as long as patience, or `left`, lasts."""
    patience = PATIENCE if left is None else min(left, PATIENCE)
    started: float = yield Now()
    pause = SOON
    while True:
        try:
            began: float = yield Now()
            within = min(USUAL, max(patience - (began - started), LEAST))

            def request(_: int, spent: float, within: float = within) -> Send:
                media = None if content is None else _inputs.JSON
                return Send(method, path, within - spent, content or b"", media)

            reply = yield from core.until(request, began, within)
            return _answers.from_json(reply.body)
        except (Unreachable, Overloaded) as error:
            now: float = yield Now()
            told = error.retry_after if isinstance(error, Overloaded) else None
            if now - started + max(pause, told or 0.0) > patience:
                raise
            yield Pause(max(pause, told or 0.0))
            pause = min(pause * 2.0, LATER)


def estimate(core: Core, task: str, count: int, goals: Goals) -> Operation[JobEstimate]:
    """What a job would cost. Nothing is made."""
    body = {"task": task, "inputs": count, "goals": _goals(goals)}
    told = (yield from core.call("POST", "/v1/jobs?dry_run=true", body))["estimate"]
    return JobEstimate(told.get("usd"), told.get("device_s"), told.get("variant"))


def listed(core: Core) -> Operation[List[Job]]:
    """Those that the key may see, newest first."""
    told = yield from core.get("/v1/jobs")
    return [Job.of(one) for one in told["jobs"]]


def get(core: Core, which: Which) -> Operation[Job]:
    """One as it is now."""
    told = yield from core.get(f"/v1/jobs/{number(which)}")
    return Job.of(told)


def cancel(core: Core, which: Which) -> Operation[Job]:
    """Ends one."""
    told = yield from core.call("POST", f"/v1/jobs/{number(which)}/cancel")
    return Job.of(told)


def remove(core: Core, which: Which) -> Operation[None]:
    """Removes one that has ended, with its outputs."""
    yield from core.call("DELETE", f"/v1/jobs/{number(which)}", repeatable=False)


def wait(core: Core, which: Which, timeout: Optional[float], progress: Progress) -> Operation[Job]:
    """Looks at a job until it has ended."""
    job = number(which)
    started: float = yield Now()
    pause, watched, before = SOON, None, 0
    try:
        while True:
            told = Job.of((yield from _looked(core, job, timeout, started)))
            watched = watched or Watched(progress, f"job {job}: answers", told.inputs, "inputs")
            watched.sent(told.done + told.failed - before)
            before = told.done + told.failed
            if told.ended:
                return told
            left = None if timeout is None else timeout - ((yield Now()) - started)
            if left is not None and left <= 0:
                raise Timeout(f"job {job} has not ended within {timeout:g} s: {before} of its {told.inputs} inputs have; it goes on")
            yield Pause(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, LATER)
    finally:
        if watched is not None:
            watched.end()


def _looked(core: Core, job: int, timeout: Optional[float], started: float) -> Operation[Any]:
    left = None if timeout is None else timeout - ((yield Now()) - started)
    try:
        return (yield from _patiently(core, "GET", f"/v1/jobs/{job}", None, left))
    except (Unreachable, Overloaded) as error:
        if left is None or left > PATIENCE:
            raise
        raise Timeout(f"job {job} could not be looked at any more within {timeout:g} s: {error}; it goes on") from error


@dataclass(frozen=True)
class Page:
    """Some outputs, and from which place on to ask for more, if there are any now."""

    outputs: Iterable[JobOutput]
    following: Optional[int]


def page(core: Core, which: Which, at: int) -> Operation[Page]:
    """Outputs of a job, from a place on."""
    path = f"/v1/jobs/{number(which)}/outputs?from={at}&limit={PAGE}"
    told = yield from _patiently(core, "GET", path, None)
    task = told["job"]["task"]
    kind = yield from _kind(core, task)
    outputs: Iterator[JobOutput] = (JobOutput.of(one, task, kind) for one in told["outputs"])
    job, following = Job.of(told["job"]), told["next"]
    if job.ended:
        outputs = _whole(outputs, range(at, job.inputs if following is None else following), job)
    return Page(outputs, following)


def _whole(outputs: Iterable[JobOutput], places: "range", job: Job) -> Iterator[JobOutput]:
    """With those that the job ended before: one at a time, as there may be a million."""
    at = places.start
    for output in outputs:
        yield from (JobOutput.never(place, job) for place in range(at, output.at))
        yield output
        at = output.at + 1
    yield from (JobOutput.never(place, job) for place in range(at, places.stop))


def _kind(core: Core, task: str) -> Operation[str]:
    try:
        form = core.known(task) or (yield from core.form(task))
    except NotFound:
        return ""  # a job's answers outlive its task
    return form.kind


def number(which: Which) -> int:
    """A job's number."""
    return which.id if isinstance(which, Job) else int(which)


def seconds(deadline: Deadline) -> float:
    """A length of time, from now on."""
    if isinstance(deadline, timedelta):
        return deadline.total_seconds()
    if isinstance(deadline, str):
        units = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
        try:
            return float(deadline[:-1]) * units[deadline[-1:]]
        except (KeyError, ValueError):
            raise InputError(f"deadline is {deadline!r}; expected seconds, a timedelta, or a text such as 90s, 30m, 2h or 1d") from None
    return float(deadline or 0.0)


def _goals(goals: Goals) -> Dict[str, Any]:
    given = goals.given()
    for name in ("latency_ms", "priority", "fallback"):
        if name in given:
            raise InputError(f"{name} is no goal of a job: its inputs are answered when nothing else has to be; give it a deadline")
    return given


class Source:
    """The inputs of a job, each with a name, in their order. Those of an iterator are read once, as they are sent."""

    def __init__(self, count: int, at: Optional[Callable[[int], Any]], rest: Optional[Iterator[Any]]):
        self.count = count
        self._at = at
        self._rest = rest
        self._read = 0

    @classmethod
    def of(cls, form: TaskForm, inputs: Any, count: Optional[int], known: Optional[int] = None) -> "Source":
        """From a folder, a list, or an iterator with its count, where that is not known."""
        if isinstance(inputs, (str, os.PathLike)):
            inputs = _files(Path(inputs))
        elif isinstance(inputs, (bytes, bytearray, Mapping)) or _inputs.is_array(inputs):
            raise InputError(f"a job takes several inputs of task {form.name!r}: give a list of them, or a folder")
        if hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__"):
            if count not in (None, len(inputs)):
                raise InputError(f"count is {count}, and there are {len(inputs)} inputs")
            if not len(inputs):
                raise InputError("there are no inputs")
            return cls(len(inputs), inputs.__getitem__, None)
        if not isinstance(inputs, Iterable):
            raise InputError(f"a {type(inputs).__name__} is no list of inputs")
        count = known if count is None else count
        if count is None or count < 1:
            raise InputError("how many inputs an iterator will give has to be said beforehand: count=")
        return cls(count, None, iter(inputs))

    def get(self, at: int) -> Tuple[str, Any]:
        """One with its name. Of an iterator, what lies before is passed over."""
        if self._at is not None:
            return _named(at, self._at(at))
        assert self._rest is not None
        if at < self._read:
            # As `Unreachable`, so that it becomes a `JobNotSent`: whoever gives the inputs anew can go on.
            raise Unreachable(f"input {at} was sent, and the server has not got it; an iterator is not read for a second time")
        while True:
            try:
                value = next(self._rest)
            except StopIteration:
                raise InputError(f"count is {self.count}, and the iterator gave {self._read} inputs") from None
            self._read += 1
            if self._read == at + 1:
                return _named(at, value)

    def is_over(self) -> None:
        """Refuses an iterator that has more."""
        if self._rest is not None and self._read == self.count and next(self._rest, None) is not None:
            raise InputError(f"count is {self.count}, and the iterator gives more inputs")


def _files(folder: Path) -> List[Tuple[str, Path]]:
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is no folder; a job takes a folder of files, or a list of inputs")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    named = [(path.relative_to(folder).as_posix(), path) for path in paths]
    named = [(name, path) for name, path in named if not any(part.startswith(".") for part in name.split("/"))]
    if not named:
        raise InputError(f"there are no files in {str(folder)!r}")
    return named


def _named(at: int, value: Any) -> Tuple[str, Any]:
    if isinstance(value, tuple):
        if len(value) != 2 or not isinstance(value[0], str):
            raise InputError("a tuple is a name and an input: (NAME, INPUT)").at(at)
        name, value = value
    else:
        name = os.path.basename(os.fspath(value)) if isinstance(value, os.PathLike) else str(at)
    if not name or len(name) > NAME_MAX or any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise InputError(f"{name[:50]!r} cannot be a name: it is 1 to {NAME_MAX} letters of text").at(at)
    return name, value


@dataclass(frozen=True)
class Chunk:
    """A request's body, and how many inputs it holds."""

    content: bytes
    inputs: int


class Chunks:
    """Inputs as bodies of requests, some at a time."""

    def __init__(self, form: TaskForm, source: Source, parameters: Mapping[str, Any], places: List[int]):
        self._form = form
        self._source = source
        self._parameters = parameters
        self._places = iter(places)
        self._held: Optional[str] = None

    def next(self) -> Optional[Chunk]:
        """The next one; `None` after the last."""
        parts: List[str] = []
        size = 0
        while len(parts) < INPUTS_AT_ONCE:
            part, self._held = self._held or self._part(), None
            if part is None:
                break
            if parts and size + len(part) > BYTES_AT_ONCE:
                self._held = part
                break
            parts.append(part)
            size += len(part)
        return Chunk(('{"inputs":[' + ",".join(parts) + "]}").encode(), len(parts)) if parts else None

    def several(self) -> List[Chunk]:
        """The next ones, to be sent side by side; none after the last. Large inputs go alone, so that memory stays small."""
        chunks: List[Chunk] = []
        while len(chunks) < CHUNKS_AT_ONCE and sum(len(chunk.content) for chunk in chunks) < CHUNKS_AT_ONCE * BYTES_AT_ONCE:
            chunk = self.next()
            if chunk is None:
                break
            chunks.append(chunk)
        return chunks

    def _part(self) -> Optional[str]:
        at = next(self._places, None)
        if at is None:
            return None
        name, value = self._source.get(at)
        try:
            body = _inputs.body(self._form, value, self._parameters)
        except ModellessError as error:
            raise error.at(at)
        head = f'{{"at":{at},"name":{json.dumps(name)}'
        if body.media == _inputs.JSON:
            return f'{head},"json":{body.content.decode()}}}'
        data = base64.b64encode(body.content).decode()
        return f'{head},"type":{json.dumps(body.media)},"data":"{data}"}}'

