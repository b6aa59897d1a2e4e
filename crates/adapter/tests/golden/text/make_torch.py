"""Makes `tiny.pt`, the same model as `tiny.onnx` in TorchScript, without PyTorch: its archive is a zip file with a program in
text, a pickle that says which numbers it holds, and the numbers.

    pip install onnx numpy && python make_torch.py
"""

import pathlib
import struct
import zipfile

import onnx
from onnx import numpy_helper

HERE = pathlib.Path(__file__).parent

CODE = """class Tiny(Module):
  __parameters__ = []
  __buffers__ = ["table", ]
  table : Tensor
  training : bool
  _is_full_backward_hook : Optional[bool]
  def forward(self: __torch__.Tiny,
    input_ids: Tensor,
    attention_mask: Tensor) -> Dict[str, Tensor]:
    table = self.table
    _0 = annotate(List[Optional[Tensor]], [input_ids])
    words = torch.index(table, _0)
    mask = torch.to(torch.unsqueeze(attention_mask, 2), 6)
    sum = torch.sum(torch.mul(words, mask), [1], True)
    whole = torch.mul(sum, 0.1)
    return {"last_hidden_state": torch.add(words, whole)}
"""


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def whole(value):
    return b"M" + struct.pack("<H", value)


def state(rows, columns):
    """An object of the program's class, with a tensor."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + whole(rows * columns) + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + whole(0)
    tensor += b"(" + whole(rows) + whole(columns) + b"t(" + whole(columns) + whole(1) + b"t"
    tensor += b"\x89ccollections\nOrderedDict\n)RtR"
    fields = text("table") + tensor + text("training") + b"\x89" + text("_is_full_backward_hook") + b"N"
    return b"\x80\x02c__torch__\nTiny\n)\x81}(" + fields + b"ub."


def main():
    weights = {made.name: numpy_helper.to_array(made) for made in onnx.load(HERE / "tiny.onnx").graph.initializer}
    table = weights["table"]
    files = {
        "data.pkl": state(*table.shape),
        "code/__torch__.py": CODE.encode(),
        "data/0": table.astype("<f4").tobytes(),
        "constants.pkl": b"\x80\x02).",
        "version": b"3\n",
        "byteorder": b"little",
    }
    with zipfile.ZipFile(HERE / "tiny.pt", "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"tiny/{name}"), content)


if __name__ == "__main__":
    main()
