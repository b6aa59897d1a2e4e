"""Makes the TorchScript versions of the engine's test models. Needs the package `torch`; the files are committed.

    python make_torch.py

They do what the models of the same name in make.py do.
"""

from pathlib import Path
from typing import Dict, Tuple

import torch
from torch import Tensor

HERE = Path(__file__).parent


def save(name, module):
    torch.jit.script(module.eval()).save(str(HERE / f"{name}.pt"))


class Echo(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Types(torch.nn.Module):
    def forward(
        self, f32: Tensor, f16: Tensor, f64: Tensor, i8: Tensor, u8: Tensor, i32: Tensor, i64: Tensor, b: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        return f32, f16, f64, i8, u8, i32, i64, b, i32.to(torch.float32), torch.logical_not(b)


class Fixed(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=1)


class Gather(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(20, dtype=torch.float32).reshape(10, 2))

    def forward(self, index: Tensor) -> Dict[str, Tensor]:
        return {"row": self.table[index]}


class Picky(torch.nn.Module):
    def forward(self, length: Tensor) -> Tensor:
        ones = torch.ones([length.shape[0], 10])
        row = int(length.max().item())
        return ones.reshape([-1, 10 if row == 0 else row])


class Mixes(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=0, keepdim=True)


class Ragged(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nonzero(x == 0.0)


class Slow(torch.nn.Module):
    def forward(self, rounds: Tensor) -> Tensor:
        eye = torch.full([64, 64], 1.0 / 64.0)
        m = torch.ones([64, 64])
        for _ in range(int(rounds.max().item())):
            m = torch.matmul(m, eye)
        return rounds * m.max().to(torch.int64)


class Greedy(torch.nn.Module):
    def forward(self, mib: Tensor) -> Tensor:
        most = int(mib.max().item())
        return mib + torch.zeros([most * (1 << 17) + 1], dtype=torch.int64).min()


class Divides(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.div(x, torch.full_like(x, -1), rounding_mode="trunc")


class Grows(torch.nn.Module):
    def forward(self, mib: Tensor) -> Tensor:
        m = torch.zeros([512, 512])
        kept = [m]
        for _ in range(int(mib.max().item())):
            m = m + 1.0
            kept.append(m)
        return mib + 0 * len(kept)


save("echo", Echo())
save("open", Echo())
save("types", Types())
save("fixed", Fixed())
save("gather", Gather())
save("picky", Picky())
save("mixes", Mixes())
save("ragged", Ragged())
save("slow", Slow())
save("greedy", Greedy())
save("divides", Divides())
save("grows", Grows())
