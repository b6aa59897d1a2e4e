"""Live torch modules. `cargo xtask test` runs these in an environment of their own, with the torch of the system."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
import torch

from modelless import Client, InputError
from modelless._torch import export


class Net(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """Answers differently while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(784, 32)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x.flatten(1)))))


@pytest.fixture
def net(client: Client) -> Iterator[Any]:
    """A module that is being trained; what is registered of it is taken away."""
    torch.manual_seed(1)
    yield Net().train()
    for model in client.models.list("fashion-tensor"):
        if model.name == "live":
            client.models.remove("fashion-tensor", "live", version=model.version, force=True)


@pytest.mark.parametrize("form", ["onnx", "torchscript", "scripted"])
def test_a_live_module_answers_what_it_answers_here(client: Client, net: Any, form: str) -> None:
    module = torch.jit.script(net) if form == "scripted" else net
    options: Any = {"format": "torchscript"} if form == "scripted" else {"format": form, "example": torch.rand(1, 1, 28, 28)}
    (known,) = client.models.register(module, task="fashion-tensor", name="live", accuracy=0.1, budget_s=2, **options)
    assert net.training, "it is put back as it was"
    net.eval()
    for _ in range(3):
        picture = torch.rand(1, 28, 28, requires_grad=True)
        got = client.query("fashion-tensor", picture, variant=known.variants[0]).numpy()
        np.testing.assert_allclose(got, net(picture[None]).detach().numpy()[0], atol=1e-5)


@pytest.mark.parametrize("form", ["onnx", "torchscript", "scripted", "failing"])
def test_every_part_of_a_module_is_put_back_as_it_was(tmp_path: Path, form: str) -> None:
    frozen = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), frozen).train()
    frozen.eval()
    module = torch.jit.script(net) if form == "scripted" else net
    modes = [part.training for part in module.modules()]
    assert len(set(modes)) == 2
    example = torch.rand(1, 5 if form == "failing" else 4)
    written = "onnx" if form == "onnx" else "torchscript"
    with pytest.raises(RuntimeError) if form == "failing" else nullcontext():
        export(module, example, written, ["x"], ["y"], tmp_path)
    assert [part.training for part in module.modules()] == modes


def test_what_a_module_cannot_say_is_asked_for(client: Client, net: Any) -> None:
    for options, said in (
        ({}, "give task=... and name=..."),
        ({"task": "fashion-tensor", "name": "live"}, "give example=..."),
        ({"task": "fashion-tensor", "name": "live", "example": torch.rand(1, 784), "format": "pickle"}, "expected one of onnx"),
        ({"task": "fashion-tensor", "name": "live", "example": (torch.rand(1, 784),) * 2}, "name them all"),
    ):
        with pytest.raises(InputError, match=said):
            client.models.register(net, **options)
