"""Says an ONNX file that `convert.py` made once more in TorchScript, with the same weights and without PyTorch: such a file is a
zip archive with a program in text, a pickle that says which numbers it holds, and the numbers.

    python torchscript.py IN.onnx OUT.pt

Whether both answer the same is what `cargo xtask measure same-weights` shows.
"""

import pathlib
import struct
import sys
import zipfile

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT = onnx.TensorProto.FLOAT
# The same type by its number in PyTorch.
FLOAT_OF_TORCH = 6


def ends(pads):
    """Both ends of each axis, the last axis first, as PyTorch wants them."""
    half = len(pads) // 2
    return [end for axis in reversed(range(half)) for end in (pads[axis], pads[axis + half])]


def expression(node, value, constant, attributes):
    """What one node is in TorchScript. `value` tells what a name is there, and `constant` the numbers behind it."""
    kind, (first, *others) = node.op_type, node.input
    if kind == "Conv":
        strides, group, pads = attributes["strides"], attributes["group"], attributes["pads"]
        padded = f"torch.constant_pad_nd({value(first)}, {ends(pads)}, 0.)" if any(pads) else value(first)
        weight, bias = map(value, others)
        return f"torch.conv2d({padded}, {weight}, {bias}, {strides}, [0, 0], [1, 1], {group})"
    if kind == "Clip":
        low, high = (float(constant(name).item()) for name in others)
        return f"torch.clamp({value(first)}, {low}, {high})"
    if kind == "LayerNormalization":
        scale, bias = map(value, others)
        shape = list(constant(others[0]).shape)
        return f"torch.layer_norm({value(first)}, {shape}, {scale}, {bias}, {attributes['epsilon']}, False)"
    if kind == "ReduceSum":
        axes = constant(others[0]).tolist()
        return f"torch.sum({value(first)}, {axes}, {bool(attributes['keepdims'])})"
    if kind == "Unsqueeze":
        wide = value(first)
        for axis in sorted(constant(others[0]).tolist()):
            wide = f"torch.unsqueeze({wide}, {axis})"
        return wide
    if kind == "Reshape":
        # The batch is what is left.
        shape = [size or -1 for size in constant(others[0]).tolist()]
        return f"torch.reshape({value(first)}, {shape})"
    if kind == "Cast":
        assert attributes["to"] == FLOAT, "only to 32 bits"
        return f"torch.to({value(first)}, {FLOAT_OF_TORCH})"
    if kind == "Transpose":
        return f"torch.permute({value(first)}, {attributes['perm']})"
    if kind == "Gemm":
        assert attributes["transB"] == 1, "only as linear layers have it"
    same = {
        "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "maximum", "Pow": "pow", "Sqrt": "sqrt", "Erf": "erf",
        "MatMul": "matmul", "Gather": "embedding", "Gemm": "linear", "Flatten": "flatten", "Softmax": "softmax",
        "GlobalAveragePool": "mean",
    }  # fmt: skip
    how = {"Flatten": ["1", "-1"], "Softmax": ["-1"], "GlobalAveragePool": ["[2, 3]", "True"]}
    return f"torch.{same[kind]}({', '.join([*map(value, node.input), *how.get(kind, [])])})"


def program(graph):
    """The text of the program, and the weights that it uses, by their names there."""
    known = {made.name: numpy_helper.to_array(made) for made in graph.initializer}
    inputs = [made.name for made in graph.input]
    names, used = {name: name for name in inputs}, {}

    def value(name):
        if name in known and name not in names:
            names[name] = f"self.w{len(used)}"
            used[f"w{len(used)}"] = known[name]
        return names[name]

    lines = []
    for number, node in enumerate(graph.node):
        attributes = {made.name: helper.get_attribute_value(made) for made in node.attribute}
        lines.append(f"    t{number} = {expression(node, value, known.__getitem__, attributes)}")
        names[node.output[0]] = f"t{number}"
    answers = ", ".join(f'"{made.name}": {names[made.name]}' for made in graph.output)
    buffers = "".join(f'"{name}", ' for name in used)
    head = ["class Model(Module):", "  __parameters__ = []", f"  __buffers__ = [{buffers}]"]
    head += [f"  {name} : Tensor" for name in used]
    head += ["  training : bool", "  _is_full_backward_hook : Optional[bool]", "  def forward(self: __torch__.Model,"]
    head += [f"    {name}: Tensor{') -> Dict[str, Tensor]:' if name == inputs[-1] else ','}" for name in inputs]
    return "\n".join([*head, *lines, f"    return {{{answers}}}", ""]), used


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def whole(value):
    return b"J" + struct.pack("<i", value)


def several(values):
    return b"(" + b"".join(whole(value) for value in values) + b"t"


STORAGES = {"float32": "FloatStorage", "int64": "LongStorage"}


def tensor(number, array):
    kind = STORAGES[array.dtype.name]
    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(str(number)) + text("cpu") + whole(array.size) + b"tQ"
    strides = [stride // array.itemsize for stride in np.ascontiguousarray(array).strides]
    made = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + whole(0) + several(array.shape) + several(strides)
    return made + b"\x89ccollections\nOrderedDict\n)RtR"


def state(weights):
    """An object of the program's class, with its tensors."""
    fields = b"".join(text(name) + tensor(number, array) for number, (name, array) in enumerate(weights.items()))
    fields += text("training") + b"\x89" + text("_is_full_backward_hook") + b"N"
    return b"\x80\x02c__torch__\nModel\n)\x81}(" + fields + b"ub."


def main(source, out):
    code, weights = program(onnx.load(source).graph)
    files = {"data.pkl": state(weights), "code/__torch__.py": code.encode()}
    files |= {f"data/{number}": np.ascontiguousarray(array).tobytes() for number, array in enumerate(weights.values())}
    files |= {"constants.pkl": b"\x80\x02).", "version": b"3\n", "byteorder": b"little"}
    name = pathlib.Path(out).name.split(".")[0]
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{name}/{path}"), content)


if __name__ == "__main__":
    main(*sys.argv[1:])
