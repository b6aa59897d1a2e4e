"""A live torch module as a file that a server can run: ONNX, or TorchScript.

Tracing records what the module does with one example, so a `forward` that decides by its input's values needs `torch.jit.script`
first; what that gives can be registered as it is.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, List, Sequence, Tuple

from ._errors import InputError, MissingPackage
from ._optional import torch as need_torch

FORMATS = ("onnx", "torchscript")
#: Operators that ONNX Runtime and the exporters of all supported versions know.
OPSET = 14


def is_module(value: Any) -> bool:
    """Whether it is a module, without importing torch: who has one has imported it."""
    return any(kind.__module__.startswith("torch.") and kind.__name__ == "Module" for kind in type(value).__mro__)


def is_scripted(value: Any) -> bool:
    """Whether it is TorchScript already."""
    return any(kind.__name__ == "ScriptModule" for kind in type(value).__mro__)


def export(module: Any, example: Any, form: str, inputs: Sequence[str], outputs: Sequence[str], into: Path) -> Path:
    """Writes a module to a file in `into`; the file tells by its ending what it is. `example` has the batch in front."""
    torch = need_torch("registering a torch module")
    if form not in FORMATS:
        raise InputError(f"format is {form!r}; expected one of {', '.join(FORMATS)}")
    if example is None and not (form == "torchscript" and is_scripted(module)):
        raise InputError("a module is exported by running it once: give example=..., a tensor with the batch in front")
    arguments: Tuple[Any, ...] = example if isinstance(example, tuple) else (example,)
    # Each by itself: a module in training may have parts that are held in evaluation, such as frozen BatchNorms.
    before = [(part, part.training) for part in module.modules() if hasattr(part, "training")]
    try:
        module.eval()
        with torch.no_grad():
            if form == "torchscript":
                return _torchscript(torch, module, arguments, into / "module.pt")
            return _onnx(torch, module, arguments, list(inputs), list(outputs), into / "module.onnx")
    finally:
        for part, training in before:
            part.training = training


def _torchscript(torch: Any, module: Any, example: Tuple[Any, ...], file: Path) -> Path:
    traced = module if is_scripted(module) else torch.jit.trace(module, example)
    traced.save(str(file))
    return file


def _onnx(
    torch: Any, module: Any, example: Tuple[Any, ...], inputs: List[str], outputs: List[str], file: Path
) -> Path:
    if len(inputs) != len(example):
        raise InputError(f"the module is given {len(example)} tensors and has the inputs {', '.join(inputs)}: name them all")
    options = {
        "input_names": inputs,
        "output_names": outputs,
        "dynamic_axes": {name: {0: "batch"} for name in [*inputs, *outputs]},
        "opset_version": OPSET,
    }
    # The newer exporter needs packages more, and keeps weights in files of their own.
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False
    try:
        torch.onnx.export(module, example, str(file), **options)
    except Exception as error:
        if "onnx is not installed" in str(error):
            raise MissingPackage("exporting to ONNX needs the package onnx: pip install onnx") from error
        raise
    return file
