"""The client that blocks."""

from __future__ import annotations

from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Type, Union, overload
from typing import Iterator

import httpx

from . import _catalog, _jobs, _policies
from ._answers import Answer
from ._core import How
from ._drive import SyncDriver
from ._ended import EndedQuery, ended
from ._goals import Goals, GoalsGiven
from ._inputs import Input
from ._job import Job, JobEstimate, JobOutput, JobResults
from ._jobs import Deadline, Which
from ._policies import Policy
from ._progress import Progress
from ._register import Options, Wanted, register, who
from ._retry import Retries
from ._settings import Certificate, Settings, Trust, parameters as _parameters
from ._shown import DefaultVersion, Explanation, Model, Registered, Task, Trial, Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client:
    """A server, asked by calls that block. May be shared by threads; close it, or use it in a `with`.

    `server` is its address; left out, `MODELLESS_SERVER` or the usual one. `headers` go with every request, and so
    does `api_key`; left out, that is `MODELLESS_KEY`, if it is set.
    `connections` is how many are open at most, `at_once` how many inputs of one list are asked side by side (of texts, how many
    requests at most). For https, `ca` is a file with the authorities that the server's certificate may come from (left out,
    `MODELLESS_CA` or those that httpx believes), and `certificate` a pair of files, certificate and key, to show to a server that wants
    one. `verify` is httpx's.
    """

    def __init__(
        self,
        server: Optional[str] = None,
        *,
        api_key: Optional[str] = None,
        headers: Optional[Mapping[str, str]] = None,
        retries: Optional[Retries] = None,
        connections: int = 64,
        at_once: int = 16,
        verify: Any = True,
        ca: Optional[Union[str, PathLike[str]]] = None,
        certificate: Optional[Certificate] = None,
    ):
        trust = Trust(verify, ca, certificate)
        settings = Settings(server, api_key, headers, retries, connections, at_once, trust)
        self.server = settings.server
        self._core = settings.core
        self._http = httpx.Client(**settings.http)
        self._driver = SyncDriver(self._http, settings.requests)
        #: Tasks: listed, shown, made, removed.
        self.tasks = Tasks(self)
        #: Models: listed, registered, promoted, removed.
        self.models = Models(self)
        #: Offline jobs: submitted, waited for, read.
        self.jobs = Jobs(self)
        #: Policies: listed, set, deleted.
        self.policies = Policies(self)

    @overload
    def query(
        self,
        task: str,
        input: Union[List[Any], Tuple[Any, ...]],
        *,
        top_k: Optional[int] = ...,
        parameters: Optional[Mapping[str, Any]] = ...,
        timeout: Optional[float] = ...,
        fresh: bool = ...,
        **goals: Unpack[GoalsGiven],
    ) -> List[Answer]: ...

    @overload
    def query(
        self,
        task: str,
        input: Input,
        *,
        top_k: Optional[int] = ...,
        parameters: Optional[Mapping[str, Any]] = ...,
        timeout: Optional[float] = ...,
        fresh: bool = ...,
        **goals: Unpack[GoalsGiven],
    ) -> Answer: ...

    def query(
        self,
        task: str,
        input: Any,
        *,
        top_k: Optional[int] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        timeout: Optional[float] = None,
        fresh: bool = False,
        **goals: Unpack[GoalsGiven],
    ) -> Union[Answer, List[Answer]]:
        """Asks a task. A list is several inputs, answered in its order.

        An input is, by the task's kind: a path, the bytes of a JPEG or PNG, a PIL image or an array of uint8; a text; an array, raw
        bytes, or a dict of those by name. The goals are `accuracy`, `latency_ms`, `max_cost`, `prefer`, `priority`, `fallback`,
        `model` and `variant`, as everywhere. `timeout` is in seconds over all of a query; left out it is the latency that was asked
        for (or the task's default) and five seconds for the way, and with `fallback="best_effort"` half a minute more. Where no
        `latency_ms` is given, each text of a list has its own time in its turn: a request of so many takes as many times as long at most.

        Where the task gives answers again, `fresh=True` asks for a new one.
        """
        asked = self._core.query(task, input, Goals.of(goals), _parameters(top_k, parameters), How(timeout, fresh))
        answer: Union[Answer, List[Answer]] = self._driver.run(asked)
        return answer

    def explain(self, task: str, **goals: Unpack[GoalsGiven]) -> Explanation:
        """What would be decided for a query with these goals that came now, with every candidate. Nothing is run."""
        return self._driver.run(_catalog.explain(self._core, task, Goals.of(goals)))

    def explain_query(self, of: Union[Answer, str]) -> EndedQuery:
        """What became of a query that has ended, and why: each decision on it as the gateway saw it then. `of` is the answer, its
        `query_id`, or the number that an answer or a refusal tells (`modelless-query`). A gateway keeps the last 1,024."""
        return self._driver.run(ended(self._core, of))

    def feedback(
        self, of: Union[Answer, str], *, label: Optional[str] = None, correct: Optional[bool] = None
    ) -> Verdict:
        """Says whether an answer was right: which label is, or whether it was. `of` is the answer, or its `query_id`."""
        return self._driver.run(_catalog.feedback(self._core, of, label, correct))

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.server!r})"


class Tasks:
    """`client.tasks`."""

    def __init__(self, client: Client):
        self._client = client

    def list(self) -> List[Task]:
        """All tasks, in short: without their variants."""
        return self._client._driver.run(_catalog.tasks(self._client._core))

    def get(self, name: str) -> Task:
        """One task with its variants and what is known of each. In a notebook it shows their frontier."""
        return self._client._driver.run(_catalog.task(self._client._core, name))

    def create(self, name: str, kind: str, *, labels: Optional[List[str]] = None, **more: Any) -> Task:
        """Makes a task. `more` is what `POST /v1/tasks` takes, such as `inputs`, `outputs`, `space`, `defaults`."""
        body: Dict[str, Any] = {"name": name, "kind": kind, "labels": labels or [], **more}
        return self._client._driver.run(_catalog.create(self._client._core, body))

    def remove(self, name: str) -> None:
        """Removes a task that has no models."""
        self._client._driver.run(_catalog.remove_task(self._client._core, name))


class Models:
    """`client.models`."""

    def __init__(self, client: Client):
        self._client = client

    def list(self, task: Optional[str] = None) -> List[Model]:
        """All models, or those of a task."""
        return self._client._driver.run(_catalog.models(self._client._core, task))

    def versions(self, task: str, name: str) -> List[Model]:
        """A model in all its versions, newest first."""
        return self._client._driver.run(_catalog.versions(self._client._core, task, name))

    def promote(self, task: str, name: str, version: int, *, force: bool = False) -> DefaultVersion:
        """Makes a version the default: it answers queries that pin nothing."""
        return self._client._driver.run(_catalog.promote(self._client._core, task, name, version, force, who()))

    def rollback(
        self, task: str, name: str, *, version: Optional[int] = None, force: bool = False
    ) -> DefaultVersion:
        """Goes back to the version that was the default before; `version` is what is taken for the default now."""
        return self._client._driver.run(_catalog.roll_back(self._client._core, task, name, version, force, who()))

    def try_version(
        self,
        task: str,
        name: str,
        version: int,
        share: float,
        *,
        shadow: bool = False,
        lasts: Optional[float] = None,
        promote_when_good: bool = False,
        force: bool = False,
    ) -> Trial:
        """Has a version answer `share` of the task's queries for `lasts` seconds (3,600), unless it does worse than the default.

        With `shadow` it is asked copies of these instead, in time that nothing else needs; their answers are compared and thrown away.
        With `promote_when_good` it becomes the default once it is known to do no worse, after `lasts` seconds at the earliest.
        """
        return self._client._driver.run(
            _catalog.begin_trial(
                self._client._core, task, name, version, (share, shadow), lasts, promote_when_good, force, who()
            )
        )

    def trial(self, task: str) -> Trial:
        """The trial of a task that runs, or else the last one."""
        return self._client._driver.run(_catalog.trial(self._client._core, task))

    def trials(self, task: Optional[str] = None) -> List[Trial]:
        """Trials of versions, newest first."""
        return self._client._driver.run(_catalog.trials(self._client._core, task))

    def stop_trial(self, task: str) -> Trial:
        """Stops the trial of a task that runs. Nothing else changes."""
        return self._client._driver.run(_catalog.stop_trial(self._client._core, task, who()))

    def remove(self, task: str, name: str, *, version: Optional[int] = None, force: bool = False) -> List[str]:
        """Takes a model out of service. Gives what was removed, as NAME@VERSION."""
        return self._client._driver.run(_catalog.remove(self._client._core, task, name, version, force, who()))

    def register(self, source: Any, **options: Unpack[Options]) -> List[Registered]:
        """Sends a model, has it measured there, and serves it. Gives one entry for each model.

        `source` is a model.toml or its folder; a folder with task.toml and models/*.toml (the task is made if there is none); an ONNX
        or TorchScript file, described by the options; or a torch module, which is exported as `format` (`onnx`, `torchscript`) by
        running it once on `example`. `labelled_set` is a `.csv` of FILE,LABEL, a `.jsonl[.gz]`, an IDX pair, or pairs of an input and
        its label. `progress` is `True` for bars (tqdm), or a function of what is sent, bytes sent and bytes in all. The other options
        are told in `modelless.RegisterOptions`.
        """
        wanted = Wanted.of(source, options)
        return self._client._driver.run(register(self._client._core, wanted))


class Policies:
    """`client.policies`."""

    def __init__(self, client: Client):
        self._client = client

    def list(self) -> List[Policy]:
        """What was said of your tenant and its applications; for the operator of all."""
        return self._client._driver.run(_policies.policies(self._client._core))

    def set(
        self,
        app: Optional[str] = None,
        *,
        tenant: Optional[str] = None,
        task: Optional[str] = None,
        goals: Optional[Mapping[str, Any]] = None,
        bounds: Optional[Mapping[str, Any]] = None,
        model: Optional[str] = None,
        variant: Optional[str] = None,
        weight: Optional[int] = None,
        reserve: Optional[float] = None,
    ) -> Policy:
        """Says all that holds from now on for the queries of an application, or of a tenant with all of them, to a task or to all.

        `goals` hold where a query gives none, `bounds` (`accuracy`, `max_cost`) whatever it gives; only `model`, or `variant`, answers.
        Where more is asked than can be answered in time, `reserve` (0 to 1) of the task's devices is the application's own, and
        beside others it gets by `weight`; only the operator says these two.
        """
        more = {"model": model, "variant": variant, "weight": weight, "reserve": reserve}
        asked = _policies.set_policy(self._client._core, (tenant, app, task), goals, bounds, more)
        return self._client._driver.run(asked)

    def delete(
        self, app: Optional[str] = None, *, tenant: Optional[str] = None, task: Optional[str] = None
    ) -> None:
        """Takes away what was said for exactly these."""
        self._client._driver.run(_policies.delete_policy(self._client._core, (tenant, app, task)))


class Jobs:
    """`client.jobs`."""

    def __init__(self, client: Client):
        self._client = client

    def submit(
        self,
        task: str,
        inputs: Any,
        *,
        name: Optional[str] = None,
        deadline: Deadline = None,
        count: Optional[int] = None,
        top_k: Optional[int] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        progress: Progress = False,
        **goals: Unpack[GoalsGiven],
    ) -> Job:
        """Makes a job of many inputs of one task, sends them, and starts it. Answers come when nothing else has to be answered.

        `inputs` is a folder of files, a list of what `query` takes, or an iterator with its `count`; an input may be a pair of a name and
        itself. The goals are those of a query but `latency_ms`, `priority` and `fallback`: a job has a `deadline` for all of it (seconds,
        a timedelta, or a text such as "2h"). What cannot be sent, and Ctrl-C, cancels it; where the server went away meanwhile, `send` goes on.
        """
        how = _parameters(top_k, parameters)
        wanted = _jobs.Wanted(task, inputs, Goals.of(goals), name, deadline, count, how, progress)
        return self._client._driver.run(_jobs.submit(self._client._core, wanted))

    def send(
        self,
        job: Which,
        inputs: Any,
        *,
        count: Optional[int] = None,
        top_k: Optional[int] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        progress: Progress = False,
    ) -> Job:
        """Goes on with a job that was not sent whole: sends those of its inputs that have not come, and starts it."""
        wanted = _jobs.Wanted("", inputs, Goals(), None, None, count, _parameters(top_k, parameters), progress)
        return self._client._driver.run(_jobs.send(self._client._core, job, wanted))

    def run(
        self,
        task: str,
        inputs: Any,
        *,
        name: Optional[str] = None,
        deadline: Deadline = None,
        count: Optional[int] = None,
        top_k: Optional[int] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        progress: Progress = False,
        timeout: Optional[float] = None,
        **goals: Unpack[GoalsGiven],
    ) -> JobResults:
        """Submits a job, waits until it has ended, and gives how each of its inputs did. `timeout` is in seconds, for the waiting."""
        how = _parameters(top_k, parameters)
        wanted = _jobs.Wanted(task, inputs, Goals.of(goals), name, deadline, count, how, progress)
        job = self._client._driver.run(_jobs.submit(self._client._core, wanted))
        job = self.wait(job, timeout=timeout, progress=progress)
        return JobResults(job, [output for output in self.outputs(job)])

    def estimate(self, task: str, count: int, **goals: Unpack[GoalsGiven]) -> JobEstimate:
        """What a job of so many inputs would cost. Nothing is made."""
        return self._client._driver.run(_jobs.estimate(self._client._core, task, count, Goals.of(goals)))

    def list(self) -> List[Job]:
        """Jobs that the key may see, newest first."""
        return self._client._driver.run(_jobs.listed(self._client._core))

    def get(self, job: Which) -> Job:
        """A job as it is now."""
        return self._client._driver.run(_jobs.get(self._client._core, job))

    def wait(self, job: Which, *, timeout: Optional[float] = None, progress: Progress = False) -> Job:
        """Waits until a job has ended; after `timeout` seconds a `Timeout` is raised, and the job goes on."""
        return self._client._driver.run(_jobs.wait(self._client._core, job, timeout, progress))

    def outputs(self, job: Which) -> Iterator[JobOutput]:
        """How inputs ended, in their order, read page by page. Those whose turn has not come are not among them.

        Where the job has ended before its turn came, an input's `reason` is `job_cancelled` or `job_failed`, and its `name` is "".
        """
        at: Optional[int] = 0
        while at is not None:
            page = self._client._driver.run(_jobs.page(self._client._core, job, at))
            for output in page.outputs:
                yield output
            at = page.following

    def cancel(self, job: Which) -> Job:
        """Ends a job. What is answered by then is kept."""
        return self._client._driver.run(_jobs.cancel(self._client._core, job))

    def remove(self, job: Which) -> None:
        """Removes a job that has ended, with its outputs."""
        self._client._driver.run(_jobs.remove(self._client._core, job))
