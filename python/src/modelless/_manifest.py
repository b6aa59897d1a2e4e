"""`task.toml` and `model.toml` as `modelless model register` reads them. What they mean is checked by the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ._errors import InputError
from ._optional import toml

TASK_KEYS = {
    "name",
    "kind",
    "metric",
    "accuracy-rule",
    "live-accuracy",
    "declared-accuracy",
    "labels",
    "inputs",
    "outputs",
    "space",
    "description",
    "batching",
    "cache",
    "keep",
    "goals",
    "labelled-set",
    "also",
}
MODEL_KEYS = {
    "name",
    "task",
    "version",
    "architecture",
    "licence",
    "owner",
    "space",
    "accuracy",
    "labels",
    "metric",
    "adapter",
    "artefact",
    "variants",
}
#: Of a variant, beside its file: as the server takes them.
VARIANT_KEYS = {
    "name",
    "engine",
    "precision",
    "threads",
    "max_batch",
    "optimisation",
    "processor",
    "gpu_memory",
    "string_bytes",
}
#: The largest batch where a manifest names none.
USUAL_BATCH = 32


@dataclass
class VariantFile:
    """A variant and the file it is run from."""

    file: Path
    settings: Dict[str, Any]


@dataclass
class ModelFile:
    """A model to be registered."""

    name: str
    variants: List[VariantFile]
    adapter: Dict[str, Any] = field(default_factory=lambda: {"kind": "tensor"})
    #: What a text model cuts texts into tokens with.
    tokenizer: Optional[Path] = None
    task: Optional[str] = None
    version: int = 1
    architecture: str = ""
    licence: str = ""
    owner: str = ""
    space: Optional[str] = None
    accuracy: Optional[float] = None
    labels: Optional[List[str]] = None
    metric: Optional[str] = None


@dataclass
class TaskFile:
    """A task, as the server takes it, and what its models are measured with."""

    name: str
    body: Dict[str, Any]
    #: Rules that hold from now on where the task is there already.
    rules: Dict[str, Any]
    set: Optional[Tuple[Path, str]]


@dataclass
class Package:
    """What a path describes."""

    models: List[ModelFile]
    task: Optional[TaskFile] = None


def read(path: Path) -> Package:
    """A model.toml or its folder, or a folder with task.toml and models/*.toml."""
    if path.is_dir() and (path / "task.toml").is_file():
        files = sorted((path / "models").glob("*.toml"))
        if not files:
            raise InputError(f"there is no models/*.toml in {path}")
        return Package([model(file) for file in files], task(path / "task.toml"))
    file = path / "model.toml" if path.is_dir() else path
    return Package([model(file)])


def task(path: Path) -> TaskFile:
    """A task.toml."""
    told = _toml(path, TASK_KEYS)
    name = _need(path, told, "name")
    about = {key.replace("-", "_"): told[key] for key in TASK_KEYS - {"goals", "labelled-set", "also"} if key in told}
    for tensors in ("inputs", "outputs"):
        about[tensors] = [_tensor(path, spec) for spec in told.get(tensors, [])]
    about.setdefault("labels", [])
    about.setdefault("metric", "top-1")
    about["defaults"] = told.get("goals", {})
    rules: Dict[str, Any] = {key: about[key] for key in ("live_accuracy", "declared_accuracy") if key in about}
    own = told.get("labelled-set")
    return TaskFile(name, about, rules, (path.parent / own["path"], own["name"]) if own else None)


def _tensor(path: Path, spec: Mapping[str, Any]) -> Dict[str, Any]:
    try:
        return {"name": spec["name"], "datatype": spec["dtype"], "shape": spec["shape"]}
    except KeyError as error:
        raise InputError(f"{path}: a tensor lacks {error}") from None


def model(path: Path) -> ModelFile:
    """A model.toml."""
    told = _toml(path, MODEL_KEYS)
    adapter = dict(_need(path, told, "adapter"))
    tokenizer = adapter.get("tokens", {}).get("tokenizer")
    about = {key: told[key] for key in MODEL_KEYS - {"adapter", "artefact", "variants"} if key in told}
    variants = [_variant(path, one) for one in told.get("variants", [])]
    if "artefact" in told:
        if variants:
            raise InputError(f"{path}: `artefact` stands in place of [[variants]]: give one of the two")
        variants = [VariantFile(path.parent / told["artefact"], {"precision": "fp32", "max_batch": USUAL_BATCH})]
    if not variants:
        raise InputError(f"{path}: there is no `artefact` and no [[variants]]: say which file it is run from")
    _need(path, told, "name")
    return ModelFile(
        **about, adapter=adapter, variants=variants, tokenizer=path.parent / tokenizer if tokenizer else None
    )


def _variant(path: Path, told: Mapping[str, Any]) -> VariantFile:
    _known(path, told, VARIANT_KEYS | {"file"})
    settings = {key: value for key, value in told.items() if key != "file" and value != ""}
    settings.setdefault("max_batch", USUAL_BATCH)
    _need(path, told, "precision")
    return VariantFile(path.parent / _need(path, told, "file"), settings)


def _toml(path: Path, keys: "set[str]") -> Dict[str, Any]:
    try:
        told: Dict[str, Any] = toml(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    _known(path, told, keys)
    return told


def _known(path: Path, told: Mapping[str, Any], keys: "set[str]") -> None:
    unknown = sorted(set(told) - keys)
    if unknown:
        raise InputError(f"{path}: there is no setting {unknown[0]!r}; known are {', '.join(sorted(keys))}")


def _need(path: Path, told: Mapping[str, Any], key: str) -> Any:
    if key not in told:
        raise InputError(f"{path}: {key!r} is missing")
    return told[key]
