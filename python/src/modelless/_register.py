"""Registering a model: its files are sent, unless they are there already, and it is measured there."""

from __future__ import annotations

import getpass
import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, TypedDict

from . import _catalog, _manifest, _named, _sets, _torch
from ._answers import from_json
from ._core import Core, segment
from ._effects import Now, Operation, Pause, Send, Upload, Work
from ._errors import InputError, ModellessError, NotFound, ServerFailed
from ._inputs import RAW, TaskForm
from ._manifest import ModelFile, Package, VariantFile
from ._progress import Progress, Watched
from ._shown import Registered, Task

#: Measuring may take that long, and so may sending a large file.
WITHIN = 3_600.0
#: Between two looks at a cluster that measures, and how long nobody may have taken it up.
LOOK = 0.5
TAKEN_UP_WITHIN = 120.0
#: What failed so often is told as failed; nodes try it again all the same.
GIVE_UP_AFTER = 3


class Options(TypedDict, total=False):
    """How a model is to be registered. Those down to `tokenizer` describe a single file or a module; a manifest says them itself."""

    name: str
    version: int
    architecture: str
    licence: str
    #: Numbers it computes in, such as `fp32`.
    precision: str
    #: How accurate it is said to be, for when there is no labelled set.
    accuracy: float
    max_batch: int
    #: How the task's input becomes its tensors and its tensors the task's output, as in docs/inputs.md.
    adapter: Mapping[str, Any]
    #: A file, for models of texts.
    tokenizer: Any
    #: The task it is for, where a manifest does not say it.
    task: Optional[str]
    #: Whom to ask about it.
    owner: str
    #: What its accuracy is measured with, and what that is called where its figures are shown.
    labelled_set: Any
    set_name: str
    #: Make it the default version: at once where it is measured at once, in a cluster once it is measured, if that is waited for.
    promote: bool
    #: So many seconds at most for measuring each model, 60 where nothing is said; None is as long as it takes. What is known
    #: coarsely then is measured again by itself.
    budget_s: Optional[float]
    #: Whether to wait until the nodes of a cluster have measured it.
    wait: bool
    progress: Progress
    #: Of a torch module: what it is run on once, as what it is written, and what its tensors are called.
    example: Any
    format: str
    inputs: List[str]
    outputs: List[str]


@dataclass(frozen=True)
class Wanted:
    """The same with what is usual."""

    source: Any
    task: Optional[str] = None
    name: Optional[str] = None
    version: Optional[int] = None
    architecture: Optional[str] = None
    licence: Optional[str] = None
    owner: Optional[str] = None
    adapter: Optional[Mapping[str, Any]] = None
    tokenizer: Any = None
    precision: Optional[str] = None
    accuracy: Optional[float] = None
    max_batch: Optional[int] = None
    labelled_set: Any = None
    set_name: Optional[str] = None
    promote: bool = False
    budget_s: Optional[float] = 60.0
    wait: bool = True
    progress: Progress = False
    example: Any = None
    format: str = "onnx"
    inputs: Optional[List[str]] = None
    outputs: Optional[List[str]] = None

    @classmethod
    def of(cls, source: Any, options: Mapping[str, Any]) -> "Wanted":
        """From keyword arguments."""
        _named.check(options, [field.name for field in fields(cls) if field.name != "source"], "option")
        return cls(source, **options)

    def describes(self) -> Dict[str, Any]:
        """What was said of a single file."""
        names = ("name", "version", "architecture", "licence", "precision", "accuracy", "max_batch", "adapter", "tokenizer")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def who() -> str:
    """Who does it, for the history."""
    with suppress(Exception):
        return getpass.getuser()
    return ""


def register(core: Core, wanted: Wanted) -> Operation[List[Registered]]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="modelless-") as folder:
        return (yield from _register(core, wanted, Path(folder)))


def _register(core: Core, wanted: Wanted, folder: Path) -> Operation[List[Registered]]:
    package: Package
    if _torch.is_module(wanted.source):
        package = yield from _of_module(core, wanted, folder)
    else:
        package = yield Work(lambda: _of_path(wanted))
    name = wanted.task or (package.task.name if package.task else package.models[0].task)
    if name is None:
        raise InputError("say which task the model is for: task=..., or `task` in its manifest")
    task = yield from _task(core, name, package)
    for model in package.models:
        _agrees(model, task)
    labelled = yield from _set(core, wanted, package, task, folder)
    registered: List[Registered] = []
    for model in package.models:
        registered.append((yield from _one(core, wanted, task, model, labelled)))
    if wanted.wait:
        for at, known in enumerate(registered):
            if not known.measured:
                registered[at] = yield from _promoted(core, wanted, (yield from _measured(core, known)))
    return registered


def _of_path(wanted: Wanted) -> Package:
    takes = "give a model.toml, an ONNX or TorchScript file, a folder, or a torch module"
    if not isinstance(wanted.source, (str, os.PathLike)):
        raise InputError(f"a {type(wanted.source).__name__} is no model that can be registered; {takes}")
    path = Path(wanted.source)
    if not path.exists():
        raise InputError(f"there is no {path}; {takes}")
    if path.suffix.lower() in (".onnx", ".pt"):
        return Package([_single(wanted, path, path.stem)])
    described = wanted.describes()
    if described:
        raise InputError(f"{next(iter(described))} is for a single file or a module; a manifest says it itself")
    return _manifest.read(path)


def _of_module(core: Core, wanted: Wanted, folder: Path) -> Operation[Package]:
    if wanted.task is None or wanted.name is None:
        raise InputError("a torch module says neither what it is called nor for which task it is: give task=... and name=...")
    task = yield from _catalog.task(core, wanted.task)
    inputs = wanted.inputs or [one["name"] for one in task.raw.get("inputs") or ()] or ["input"]
    outputs = wanted.outputs or [one["name"] for one in task.raw.get("outputs") or ()] or ["output"]
    file: Path = yield Work(lambda: _torch.export(wanted.source, wanted.example, wanted.format, inputs, outputs, folder))
    return Package([_single(wanted, file, wanted.name)])


def _single(wanted: Wanted, file: Path, name: str) -> ModelFile:
    settings = {"precision": wanted.precision or "fp32", "max_batch": wanted.max_batch or _manifest.USUAL_BATCH}
    if file.suffix.lower() == ".pt":
        settings["engine"] = "torch"
    return ModelFile(
        name=wanted.name or name,
        variants=[VariantFile(file, settings)],
        adapter=dict(wanted.adapter or {"kind": "tensor"}),
        tokenizer=None if wanted.tokenizer is None else Path(wanted.tokenizer),
        version=1 if wanted.version is None else wanted.version,
        architecture=wanted.architecture or "",
        licence=wanted.licence or "",
        accuracy=wanted.accuracy,
    )


def _task(core: Core, name: str, package: Package) -> Operation[Task]:
    """The task as the server has it, made first if a folder describes it; what that says of its rules holds from now on."""
    described = package.task if package.task is not None and package.task.name == name else None
    try:
        known = yield from _catalog.task(core, name)
    except NotFound:
        if described is None:
            raise
        return (yield from _catalog.create(core, described.body))
    if described is not None and described.rules:
        yield from core.call("PATCH", f"/v1/tasks/{segment(name)}", described.rules)
    return known


def _agrees(model: ModelFile, task: Task) -> None:
    """Before anything is sent."""
    if model.labels is not None and tuple(model.labels) != task.labels:
        raise InputError(f"model {model.name!r} was trained with other labels than those of task {task.name!r}, or in another order")
    if model.metric is not None and model.metric != task.metric:
        raise InputError(f"the accuracy of model {model.name!r} is {model.metric}; task {task.name!r} is measured by {task.metric}")
    for file in [one.file for one in model.variants] + ([model.tokenizer] if model.tokenizer else []):
        if not file.is_file():
            raise InputError(f"model {model.name!r} names {file}, and there is no such file")


def _set(core: Core, wanted: Wanted, package: Package, task: Task, folder: Path) -> Operation[Optional[Dict[str, str]]]:
    given, name = wanted.labelled_set, wanted.set_name
    if given is None:
        if package.task is None or package.task.set is None:
            return None
        given, own = package.task.set
        name = name or own
    if name is None:
        name = Path(given).name if isinstance(given, (str, Path)) else "given by a program"
    packed = folder / "set.jsonl.gz"
    form = TaskForm.of(task.raw)
    yield Work(lambda: _sets.pack(form, list(task.labels), given, packed))
    sha256 = yield from sent(core, packed, f"{name} (labelled set)", wanted.progress)
    return {"name": name, "artefact_sha256": sha256}


def _one(
    core: Core, wanted: Wanted, task: Task, model: ModelFile, labelled: Optional[Dict[str, str]]
) -> Operation[Registered]:
    variants = []
    for variant in model.variants:
        sha256 = yield from sent(core, variant.file, variant.file.name, wanted.progress)
        named = {"name": _usual_name(model, variant), **variant.settings}
        variants.append({**named, "artefact_sha256": sha256})
    adapter = model.adapter
    if model.tokenizer is not None:
        sha256 = yield from sent(core, model.tokenizer, model.tokenizer.name, wanted.progress)
        adapter = {**adapter, "tokens": {**adapter.get("tokens", {}), "tokenizer": sha256}}
    body: Dict[str, Any] = {
        "task": task.name,
        "name": model.name,
        "version": model.version,
        "architecture": model.architecture,
        "licence": model.licence,
        "owner": model.owner if wanted.owner is None else wanted.owner,
        "promote": wanted.promote,
        "by": who(),
        "space": model.space,
        "adapter": adapter,
        "variants": variants,
        "set": labelled,
        "declared_accuracy": model.accuracy,
        "budget_ms": None if wanted.budget_s is None else max(int(wanted.budget_s * 1e3), 1),
    }
    told = yield from core.call("POST", "/v1/models", body, WITHIN)
    return Registered.of(task.name, told)


def _usual_name(model: ModelFile, variant: VariantFile) -> str:
    version = "" if model.version <= 1 else f".v{model.version}"
    return f"{model.name}{version}-{variant.settings['precision']}"


def sent(core: Core, file: Path, what: str, progress: Progress) -> Operation[str]:
    """Sends a file, piece by piece, unless it is there already, and gives its address there."""
    sha256: str = yield Work(lambda: _sha256(file))
    try:
        yield from core.get(f"/v1/artefacts/{sha256}")
        return sha256
    except NotFound:
        pass
    watched = Watched(progress, what, file.stat().st_size)
    upload = Upload(str(file), file.stat().st_size, watched.sent)
    started: float = yield Now()

    def request(_: int, spent: float) -> Send:
        watched.begin()
        return Send("PUT", "/v1/artefacts", WITHIN - spent, media=RAW, upload=upload)

    try:
        reply = yield from core.until(request, started, WITHIN)
    finally:
        watched.end()
    kept: str = from_json(reply.body)["sha256"]
    if kept != sha256:
        raise ServerFailed(201, "damaged", f"{what} arrived as something else; was it changed while it was sent?", None, None)
    return kept


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open(file, "rb") as content:
            while piece := content.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    return digest.hexdigest()


def _measured(core: Core, known: Registered) -> Operation[Registered]:
    """Waits until the nodes of a cluster have measured every variant."""
    path = f"/v1/models/{segment(known.task)}/{segment(known.name)}"
    alone: float = yield Now()
    while True:
        told = yield from core.get_soon(path)
        version = next((one for one in told["versions"] if one["version"] == known.version), None)
        if version is None:
            raise ServerFailed(404, "removed", f"model {known.name!r} is gone; somebody removed it", None, None)
        left = [one for one in version["variants"] if all(_estimated(profile) for profile in one["profiles"])]
        if not left:
            return _with_warnings(known, version)
        at_it = [(one["name"], tried) for one in left for tried in one.get("measuring") or ()]
        now: float = yield Now()
        if any(tried["state"] == "running" for _, tried in at_it):
            alone = now
        for name, tried in at_it:
            if tried["state"] == "failed" and tried["attempts"] >= GIVE_UP_AFTER:
                raise NotMeasured(f"{name} is registered but could not be measured at node {tried['node']}: {tried['why']}")
        if now - alone > TAKEN_UP_WITHIN:
            why = left[0].get("unavailable") or "no executor that could has taken it up; is one running?"
            raise NotMeasured(f"{known.name} is registered, but nobody measures {left[0]['name']}: {why}")
        yield Pause(LOOK)


def _promoted(core: Core, wanted: Wanted, known: Registered) -> Operation[Registered]:
    """A cluster keeps a later version a candidate while no node has measured it, so it is asked again once one has."""
    if known.default or not wanted.promote:
        return known
    yield from _catalog.promote(core, known.task, known.name, known.version, False, who())
    return Registered.of(known.task, {**known.raw, "default": True})


class NotMeasured(ModellessError):
    """It is registered, and no node has measured it."""


def _estimated(profile: Mapping[str, Any]) -> bool:
    return bool(profile["latency"]["provenance"] == "estimated")


def _with_warnings(known: Registered, version: Mapping[str, Any]) -> Registered:
    variants = [
        {**one, "measured": True, "warnings": [said for profile in one["profiles"] for said in profile.get("warnings") or ()]}
        for one in version["variants"]
    ]
    return Registered.of(known.task, {**known.raw, "variants": variants})


