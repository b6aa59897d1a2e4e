"""Asking: which request a query is, when it is made again, and what comes of it. The same for both clients."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import quote

from . import _answers, _inputs
from ._answers import Answer
from ._effects import Now, Operation, Pause, Reply, Send, Together, Work
from ._errors import InputError, ModellessError, NotFound, Overloaded, Refused, Timeout, Unreachable, refusal
from ._goals import Goals
from ._inputs import Body, TaskForm
from ._retry import Budget, may_help

#: Beside the latency that was asked for: the way there and back, and the server's own slack.
GRACE = 5.0
#: And for who would rather have it late: so long beyond its bound a gateway keeps a query (`gateway.best_effort_ms`).
LATE = 30.0
#: What else than queries may take.
USUAL = 30.0
#: Texts of one request.
TEXTS_MAX = 64
#: Such requests of one list that are side by side at first, where no latency is asked.
AT_FIRST = 2
#: Descriptions of tasks that are kept.
TASKS_MAX = 1_000


def segment(name: str) -> str:
    """A name as one part of a path."""
    if not name or name in (".", ".."):
        raise InputError(f"{name!r} is no name")
    return quote(name, safe="")


@dataclass(frozen=True)
class How:
    """In which manner a query is asked."""

    #: Seconds over all attempts, with what is asked and written before the first.
    timeout: Optional[float] = None
    #: No answer that was given before will do.
    fresh: bool = False


class Core:
    """What the operations of one client share."""

    def __init__(self, budget: Budget, at_once: int):
        self.budget = budget
        self.at_once = at_once
        self._forms: Dict[str, TaskForm] = {}

    def query(
        self, task: str, value: Any, goals: Goals, parameters: Mapping[str, Any], how: How
    ) -> Operation[Any]:
        """One input, or each of a list."""
        started: float = yield Now()
        form = self._forms.get(task) or (yield from self.form(task, how.timeout))
        if isinstance(value, (list, tuple)):
            answers: List[Answer] = yield from self._each(form, list(value), goals, parameters, how)
            return answers
        body = yield from self._written(form, value, parameters)
        reply = yield from self._ask(form, body, goals, how, started)
        return _answers.parse(form.name, form.kind, reply.headers, reply.body)

    def form(self, task: str, timeout: Optional[float] = None) -> Operation[TaskForm]:
        """What a task takes; asked for once."""
        told = yield from self.get(f"/v1/tasks/{segment(task)}", timeout)
        if len(self._forms) >= TASKS_MAX:
            self._forms.clear()
        try:
            form = self._forms[task] = TaskForm.of(told)
        except (KeyError, TypeError, ValueError) as error:
            raise _answers.foreign(f"task {task!r} is described without {error}") from None
        return form

    def known(self, task: str) -> Optional[TaskForm]:
        """What a task takes, if that was asked before."""
        return self._forms.get(task)

    def forget(self, task: str) -> None:
        """A task may be another one by now."""
        self._forms.pop(task, None)

    def _written(self, form: TaskForm, value: Any, parameters: Mapping[str, Any]) -> Operation[Body]:
        if _inputs.is_light(form, value):
            return _inputs.body(form, value, parameters)
        written: Body = yield Work(lambda: _inputs.body(form, value, parameters))
        return written

    def _each(
        self, form: TaskForm, values: List[Any], goals: Goals, parameters: Mapping[str, Any], how: How
    ) -> Operation[List[Answer]]:
        operations: List[Operation[Any]] = []
        if form.takes_texts:
            for first, end in _requests(len(values)):
                operations.append(self._texts(form, first, values[first:end], goals, parameters, how))
            bounded = goals.latency_ms is not None
            parts = (yield Together(operations, self.at_once)) if bounded else (yield from self._paced(form, operations))
            return _of_one_space([answer for part in parts for answer in part])
        for at, value in enumerate(values):
            operations.append(self._one(form, at, value, goals, parameters, how))
        answers: List[Answer] = yield Together(operations, self.at_once)
        return _of_one_space(answers)

    def _paced(self, form: TaskForm, requests: List[Operation[List[Answer]]]) -> Operation[List[List[Answer]]]:
        """Requests whose texts have the task's time each: as many at once as do not make each other's late.

        Twice as many while the slowest text takes half of its time at most, half as many from three quarters on. So does the server
        with the texts of a request, but each request begins there anew.
        """
        parts: List[List[Answer]] = []
        at_once = min(AT_FIRST, self.at_once)
        while len(parts) < len(requests):
            # Some more than that at a time: nothing else begins while the last one is waited for.
            some = requests[len(parts) : len(parts) + 2 * at_once]
            answered: List[List[Answer]] = yield Together(some, at_once)
            parts.extend(answered)
            slowest = max(part[0].decision.total_ms for part in answered)
            if slowest <= form.latency_ms / 2:
                at_once = min(at_once * 2, self.at_once)
            elif slowest > form.latency_ms / 4 * 3:
                at_once = max(at_once // 2, 1)
        return parts

    def _one(
        self, form: TaskForm, at: int, value: Any, goals: Goals, parameters: Mapping[str, Any], how: How
    ) -> Operation[Answer]:
        started: float = yield Now()
        try:
            body = yield from self._written(form, value, parameters)
            reply = yield from self._ask(form, body, goals, how, started)
        except ModellessError as error:
            raise error.at(at)
        return _answers.parse(form.name, form.kind, reply.headers, reply.body)

    def _texts(
        self,
        form: TaskForm,
        first: int,
        values: List[Any],
        goals: Goals,
        parameters: Mapping[str, Any],
        how: How,
    ) -> Operation[List[Answer]]:
        """Those of a list from the `first` on, in one request."""
        started: float = yield Now()
        try:
            body: Body = yield Work(lambda: _inputs.texts_body(form, values, parameters))
            reply = yield from self._ask(form, body, goals, how, started, len(values))
        except InputError as error:
            raise error if error.index is None else error.at(first + error.index)
        except Refused as error:
            raise error.of_list(first)
        return _answers.parse_list(form.name, form.kind, reply.headers, reply.body, len(values))

    def _ask(
        self, form: TaskForm, body: Body, goals: Goals, how: How, started: float, inputs: int = 1
    ) -> Operation[Reply]:
        """A query, or several. Asked again, the server is told only what is left of their latency."""
        latency = goals.latency_ms
        bound = (latency if latency is not None else form.latency_ms) / 1e3
        # A latency that is asked holds for all of a request. The task's own begins for each input with its turn.
        turns = inputs if latency is None else 1
        late = goals.fallback == "best_effort"
        asked: float = yield Now()
        if how.timeout is None:
            # From now on: whatever writing it took, the server has the time that it is told.
            within = turns * (bound + (LATE if late else 0.0)) + GRACE
        else:
            within = how.timeout - (asked - started)
            if within <= 0:
                raise Timeout(f"{how.timeout:g} s were over before the query was sent")
        useful = within if late else min(turns * bound, within)
        path = f"/v1/tasks/{segment(form.name)}"

        def request(attempt: int, spent: float) -> Send:
            left = None if latency is None or attempt == 1 else max(latency - spent * 1e3, 0.001)
            query = goals.query(left)
            return Send("POST", f"{path}?{query}" if query else path, within - spent, body.content, body.media, fresh=how.fresh)

        try:
            return (yield from self.until(request, asked, useful))
        except Refused as error:
            if error.status in (400, 404, 415):
                self.forget(form.name)  # it may have been made anew, as another kind
            raise

    def until(
        self, request: Callable[[int, float], Send], started: float, useful: float, repeatable: bool = True
    ) -> Operation[Reply]:
        """Makes a request until it is answered, as long as another try makes sense within `useful` seconds."""
        self.budget.called()
        attempt = 1
        spent = 0.0
        while True:
            try:
                return ok((yield request(attempt, spent)))
            except (Refused, Unreachable) as error:
                if not may_help(error, repeatable):
                    raise
                spent = (yield Now()) - started
                pause = self.budget.again(error, attempt, useful - spent)
                if pause is None:
                    raise
            yield Pause(pause)
            attempt += 1
            spent = (yield Now()) - started

    def call(
        self, method: str, path: str, body: Any = None, timeout: Optional[float] = None, repeatable: bool = True
    ) -> Operation[Any]:
        """A request of another kind: JSON in, JSON out. Not `repeatable` is what would do more, or be refused, a second time."""
        within = USUAL if timeout is None else timeout
        content = b"" if body is None else json.dumps(body).encode()
        media = None if body is None else _inputs.JSON
        started: float = yield Now()

        def request(_: int, spent: float) -> Send:
            return Send(method, path, within - spent, content, media)

        reply = yield from self.until(request, started, within, repeatable)
        return _answers.from_json(reply.body)

    def get(self, path: str, timeout: Optional[float] = None) -> Operation[Any]:
        """What stands there."""
        return self.call("GET", path, None, timeout)

    def get_soon(self, path: str, timeout: Optional[float] = None) -> Operation[Any]:
        """What was made a moment ago: a gateway shows it when it has looked at its store again, about once a second."""
        for _ in range(50):
            try:
                return (yield from self.get(path, timeout))
            except NotFound:
                yield Pause(0.1)
        return (yield from self.get(path, timeout))


def _requests(count: int) -> Iterator[Tuple[int, int]]:
    """From where to where in a list each request goes. All about as large: one text alone has no turns, and is late once for all."""
    requests = -(-count // TEXTS_MAX)
    for at in range(requests):
        yield count * at // requests, count * (at + 1) // requests


def _of_one_space(answers: List[Answer]) -> List[Answer]:
    """As the server has it within a request: the task's default may have changed between two."""
    if len({answer.decision.space for answer in answers}) > 1:
        message = "the inputs were answered in different output spaces; ask again"
        raise Overloaded(503, "space_changed", message, None, None)
    return answers


def ok(reply: Reply) -> Reply:
    """An answer, or the error that it tells of."""
    if 200 <= reply.status < 300:
        return reply
    raise refusal(reply.status, reply.headers, reply.body)

