"""Makes the hostile models: harmless at most inputs, and at one each of them aborts, hangs, eats memory or takes more and more of it.

    python make.py

Needs the package `onnx`; the files are committed.
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

node = helper.make_node
BOOL, F32, I64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64


def save(name, nodes, **weights):
    values = [helper.make_tensor_value_info(tensor, I64, ["N", 1]) for tensor in "xy"]
    initializers = [numpy_helper.from_array(np.array(value), key) for key, value in weights.items()]
    graph = helper.make_graph(nodes, name, values[:1], values[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    (Path(__file__).parent / "models" / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


# The least integer over -1 is no integer: the processor ends the process with SIGFPE. That is at x = -2.
save(
    "aborts",
    [node("Add", ["x", "one"], ["by"]), node("Div", ["least", "by"], ["far"]), node("Sub", ["far", "far"], ["zero"]), node("Add", ["x", "zero"], ["y"])],
    one=np.int64(1),
    least=np.int64(-(2**63)),
)

# As many rounds as x says.
body = helper.make_graph(
    [node("Identity", ["go_in"], ["go_out"]), node("Identity", ["s_in"], ["s_out"])],
    "body",
    [helper.make_tensor_value_info(n, t, []) for n, t in [("i", I64), ("go_in", BOOL), ("s_in", I64)]],
    [helper.make_tensor_value_info(n, t, []) for n, t in [("go_out", BOOL), ("s_out", I64)]],
)
save(
    "hangs",
    [node("ReduceMax", ["x"], ["most"], keepdims=0), node("Loop", ["most", "true", "zero"], ["s"], body=body), node("Add", ["x", "s"], ["y"])],
    true=np.array(True),
    zero=np.int64(0),
)

# As many mebibytes as x says, and every one of them touched.
save(
    "eats",
    [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Mul", ["most", "mib"], ["floats"]),
        node("Add", ["floats", "one"], ["some"]),
        node("Reshape", ["some", "first"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["much"], value=helper.make_tensor("v", F32, [1], [0.0])),
        node("ReduceMax", ["much"], ["zero"], keepdims=0),
        node("Cast", ["zero"], ["zero_i"], to=I64),
        node("Add", ["x", "zero_i"], ["y"]),
    ],
    mib=np.int64(1 << 18),
    one=np.int64(1),
    first=np.array([1]),
)

# A mebibyte more in each of as many rounds as x says, all of them kept until the end.
side = [512, 512]
info = helper.make_tensor_value_info
body = helper.make_graph(
    [
        node("Add", ["m_in", "one"], ["m_out"]),
        node("Mul", ["m_out", "one"], ["kept"]),
        node("Identity", ["go_in"], ["go_out"]),
    ],
    "body",
    [info("i", I64, []), info("go_in", BOOL, []), info("m_in", F32, side)],
    [info("go_out", BOOL, []), info("m_out", F32, side), info("kept", F32, side)],
)
save(
    "grows",
    [
        node("ConstantOfShape", ["sides"], ["zeros"], value=helper.make_tensor("v", F32, [1], [0.0])),
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Loop", ["most", "true", "zeros"], ["m", "all"], body=body),
        node("Size", ["all"], ["size"]),
        node("Mul", ["size", "nothing"], ["nil"]),
        node("Add", ["x", "nil"], ["y"]),
    ],
    sides=np.array(side),
    one=np.float32(1),
    true=np.array(True),
    nothing=np.int64(0),
)
