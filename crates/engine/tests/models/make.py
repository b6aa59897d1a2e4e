"""Makes the small models of the engine's tests. Needs the package `onnx`; the files are committed.

    python make.py
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save_model

HERE = Path(__file__).parent


def model(name, nodes, inputs, outputs, initializers=(), opset=17):
    def value(spec):
        return helper.make_tensor_value_info(*spec)

    graph = helper.make_graph(
        nodes, name, [value(s) for s in inputs], [value(s) for s in outputs], initializers
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    checker.check_model(made)
    save_model(made, HERE / f"{name}.onnx")


F32, F16, F64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE
I8, U8, I32, I64, BOOL = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
)
node = helper.make_node

# One item in, the same item out.
model(
    "echo",
    [node("Identity", ["x"], ["y"])],
    [("x", F32, ["batch", 4])],
    [("y", F32, ["batch", 4])],
)

# Every element type, two inputs of each kind of shape, and more outputs than inputs.
kinds = {"f32": F32, "f16": F16, "f64": F64, "i8": I8, "u8": U8, "i32": I32, "i64": I64, "bool": BOOL}
model(
    "types",
    [node("Identity", [f"in_{k}"], [f"out_{k}"]) for k in kinds]
    + [node("Cast", ["in_i32"], ["cast_f32"], to=F32), node("Not", ["in_bool"], ["not_bool"])],
    [(f"in_{k}", t, ["n", 3]) for k, t in kinds.items()],
    [(f"out_{k}", t, ["n", 3]) for k, t in kinds.items()]
    + [("cast_f32", F32, ["n", 3]), ("not_bool", BOOL, ["n", 3])],
)

# Fails when an index is not one of 0..9: a bad input that is no crash.
model(
    "gather",
    [node("Gather", ["table", "index"], ["row"], axis=0)],
    [("index", I64, ["batch"])],
    [("row", F32, ["batch", 2])],
    [numpy_helper.from_array(np.arange(20, dtype=np.float32).reshape(10, 2), "table")],
)

# Ten ones for each item, in rows as long as the input says: 10 is right (and so is 0, which means "as it was"), 5 gives
# another shape than declared, and where the whole cannot be divided the library throws.
model(
    "picky",
    [
        node("Shape", ["length"], ["batch"]),
        node("Concat", ["batch", "ten"], ["whole"], axis=0),
        node("ConstantOfShape", ["whole"], ["ones"], value=helper.make_tensor("v", F32, [1], [1.0])),
        node("ReduceMax", ["length"], ["most"], keepdims=0),
        node("Unsqueeze", ["most", "axis"], ["row"]),
        node("Concat", ["rest", "row"], ["shape"], axis=0),
        node("Reshape", ["ones", "shape"], ["y"]),
    ],
    [("length", I64, ["batch"])],
    [("y", F32, ["rows", "row"])],
    [
        numpy_helper.from_array(np.array([10], dtype=np.int64), "ten"),
        numpy_helper.from_array(np.array([0], dtype=np.int64), "axis"),
        numpy_helper.from_array(np.array([-1], dtype=np.int64), "rest"),
    ],
)

# Takes as many MiB as the input says, in a way that no optimiser sees through.
model(
    "greedy",
    [
        node("ReduceMax", ["mib"], ["most"], keepdims=0),
        node("Mul", ["most", "eighth"], ["numbers"]),
        node("Add", ["numbers", "one"], ["end"]),
        node("Range", ["zero", "end", "one"], ["all"]),
        node("Mul", ["all", "most"], ["product"]),
        node("ReduceMin", ["product"], ["least"], keepdims=0),
        node("Add", ["mib", "least"], ["done"]),
    ],
    [("mib", I64, ["batch"])],
    [("done", I64, ["batch"])],
    [
        numpy_helper.from_array(np.array(1 << 17, dtype=np.int64), "eighth"),
        numpy_helper.from_array(np.array(0, dtype=np.int64), "zero"),
        numpy_helper.from_array(np.array(1, dtype=np.int64), "one"),
    ],
)

# Divides by minus one, which has no result for the least of all integers: ONNX Runtime does not look, and the processor
# ends the process.
model(
    "divides",
    [node("Div", ["x", "by"], ["y"])],
    [("x", I32, ["batch"])],
    [("y", I32, ["batch"])],
    [numpy_helper.from_array(np.array(-1, dtype=np.int32), "by")],
)

# A mebibyte more in each of as many rounds as it is told, all of them kept until the end.
side = [512, 512]
value = helper.make_tensor_value_info
more = helper.make_graph(
    [
        node("Add", ["m_in", "one"], ["m_out"]),
        node("Mul", ["m_out", "one"], ["kept"]),
        node("Identity", ["go_in"], ["go_out"]),
    ],
    "more",
    [value("i", I64, []), value("go_in", BOOL, []), value("m_in", F32, side)],
    [value("go_out", BOOL, []), value("m_out", F32, side), value("kept", F32, side)],
)
model(
    "grows",
    [
        node("ConstantOfShape", ["sides"], ["zeros"], value=helper.make_tensor("v", F32, [1], [0.0])),
        node("ReduceMax", ["mib"], ["most"], keepdims=0),
        node("Loop", ["most", "true", "zeros"], ["m", "all"], body=more),
        node("Size", ["all"], ["size"]),
        node("Mul", ["size", "nothing"], ["nil"]),
        node("Add", ["mib", "nil"], ["y"]),
    ],
    [("mib", I64, ["batch"])],
    [("y", I64, ["batch"])],
    [
        numpy_helper.from_array(np.array(side), "sides"),
        numpy_helper.from_array(np.float32(1), "one"),
        numpy_helper.from_array(np.array(True), "true"),
        numpy_helper.from_array(np.int64(0), "nothing"),
    ],
)

# Takes exactly four items.
model(
    "fixed",
    [node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
    [("x", F32, [4, 3])],
    [("y", F32, [4])],
    [numpy_helper.from_array(np.array([1], dtype=np.int64), "axes")],
)

# Adds up the batch: the outputs are not one for each item.
model(
    "mixes",
    [node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)],
    [("x", F32, ["batch", 3])],
    [("y", F32, [1, 3])],
    [numpy_helper.from_array(np.array([0], dtype=np.int64), "axes")],
)

# Leaves an axis open besides the batch.
model(
    "open",
    [node("Identity", ["x"], ["y"])],
    [("x", F32, ["batch", "length"])],
    [("y", F32, ["batch", "length"])],
)

# As many rows out as values in are zero: right for a warm-up with zeros, and only then.
model(
    "ragged",
    [
        node("Cast", ["x"], ["some"], to=BOOL),
        node("Not", ["some"], ["none"]),
        node("NonZero", ["none"], ["where"]),
        node("Transpose", ["where"], ["y"], perm=[1, 0]),
    ],
    [("x", F32, ["batch"])],
    [("y", I64, ["found", 1])],
)

# Runs for as long as its input says: a loop of that many multiplications of a 64 x 64 matrix that stays as it is.
body = helper.make_graph(
    [node("MatMul", ["m_in", "eye"], ["m_out"]), node("Identity", ["go_in"], ["go_out"])],
    "body",
    [
        helper.make_tensor_value_info("i", I64, []),
        helper.make_tensor_value_info("go_in", BOOL, []),
        helper.make_tensor_value_info("m_in", F32, [64, 64]),
    ],
    [
        helper.make_tensor_value_info("go_out", BOOL, []),
        helper.make_tensor_value_info("m_out", F32, [64, 64]),
    ],
)
model(
    "slow",
    [
        node("ConstantOfShape", ["sides"], ["eye"], value=helper.make_tensor("v", F32, [1], [1 / 64])),
        node("ConstantOfShape", ["sides"], ["ones"], value=helper.make_tensor("v", F32, [1], [1.0])),
        node("ReduceMax", ["rounds"], ["most"], keepdims=0),
        node("Loop", ["most", "true", "ones"], ["m"], body=body),
        node("ReduceMax", ["m"], ["one"], keepdims=0),
        node("Cast", ["one"], ["one_i"], to=I64),
        node("Mul", ["rounds", "one_i"], ["done"]),
    ],
    [("rounds", I64, ["batch"])],
    [("done", I64, ["batch"])],
    [
        numpy_helper.from_array(np.array([64, 64], dtype=np.int64), "sides"),
        numpy_helper.from_array(np.array(True), "true"),
    ],
)

# The same with as many rounds at every input: a run takes long on any machine, and gives back what it got.
model(
    "toils",
    [
        node("ConstantOfShape", ["sides"], ["eye"], value=helper.make_tensor("v", F32, [1], [1 / 64])),
        node("ConstantOfShape", ["sides"], ["ones"], value=helper.make_tensor("v", F32, [1], [1.0])),
        node("Loop", ["rounds", "true", "ones"], ["m"], body=body),
        node("ReduceMax", ["m"], ["one"], keepdims=0),
        node("Mul", ["x", "one"], ["y"]),
    ],
    [("x", F32, ["batch", 1])],
    [("y", F32, ["batch", 1])],
    [
        numpy_helper.from_array(np.array([64, 64], dtype=np.int64), "sides"),
        numpy_helper.from_array(np.array(14_000, dtype=np.int64), "rounds"),
        numpy_helper.from_array(np.array(True), "true"),
    ],
)

# Keeps 4 MiB more with every round, for as many rounds as its input says.
side = [1024, 1024]
body = helper.make_graph(
    [
        node("Add", ["m_in", "one"], ["m_out"]),
        node("Mul", ["m_out", "one"], ["kept"]),
        node("Identity", ["go_in"], ["go_out"]),
    ],
    "body",
    [
        helper.make_tensor_value_info("i", I64, []),
        helper.make_tensor_value_info("go_in", BOOL, []),
        helper.make_tensor_value_info("m_in", F32, side),
    ],
    [
        helper.make_tensor_value_info("go_out", BOOL, []),
        helper.make_tensor_value_info("m_out", F32, side),
        helper.make_tensor_value_info("kept", F32, side),
    ],
)
model(
    "eats",
    [
        node("ConstantOfShape", ["sides"], ["zeros"], value=helper.make_tensor("v", F32, [1], [0.0])),
        node("ReduceMax", ["rounds"], ["most"], keepdims=0),
        node("Loop", ["most", "true", "zeros"], ["m", "all"], body=body),
        node("Size", ["all"], ["size"]),
        node("Mul", ["size", "nothing"], ["nil"]),
        node("Add", ["rounds", "nil"], ["done"]),
    ],
    [("rounds", I64, ["batch"])],
    [("done", I64, ["batch"])],
    [
        numpy_helper.from_array(np.array(side, dtype=np.int64), "sides"),
        numpy_helper.from_array(np.array(1, dtype=np.float32), "one"),
        numpy_helper.from_array(np.array(0, dtype=np.int64), "nothing"),
        numpy_helper.from_array(np.array(True), "true"),
    ],
)

# Asks for as many bytes at once as its input says.
model(
    "gulps",
    [
        node("ReduceMax", ["bytes"], ["most"], keepdims=1),
        node("ConstantOfShape", ["most"], ["zeros"], value=helper.make_tensor("v", U8, [1], [0])),
        node("Size", ["zeros"], ["size"]),
        node("Mul", ["size", "nothing"], ["nil"]),
        node("Add", ["bytes", "nil"], ["done"]),
    ],
    [("bytes", I64, ["batch"])],
    [("done", I64, ["batch"])],
    [numpy_helper.from_array(np.array(0, dtype=np.int64), "nothing")],
)

# Strings, and one that makes them longer.
model(
    "strings",
    [node("Identity", ["x"], ["y"])],
    [("x", TensorProto.STRING, ["batch", 2])],
    [("y", TensorProto.STRING, ["batch", 2])],
)
model(
    "twice",
    [node("StringConcat", ["x", "x"], ["y"])],
    [("x", TensorProto.STRING, ["batch"])],
    [("y", TensorProto.STRING, ["batch"])],
    opset=20,
)

# Sums of products of eight bits that sixteen cannot hold: 255 in, 4 * 255 * 127 out.
integers = {
    "weights": np.full((4, 2), 127, dtype=np.int8),
    "unit": np.array(1, dtype=np.float32),
    "step": np.array(508, dtype=np.float32),
    "nothing": np.array(0, dtype=np.uint8),
    "no_weight": np.array(0, dtype=np.int8),
}
model(
    "integers",
    [
        node("QuantizeLinear", ["x", "unit", "nothing"], ["rounded"]),
        node("DequantizeLinear", ["rounded", "unit", "nothing"], ["back"]),
        node("DequantizeLinear", ["weights", "unit", "no_weight"], ["factors"]),
        node("MatMul", ["back", "factors"], ["sums"]),
        node("QuantizeLinear", ["sums", "step", "nothing"], ["rounded_sums"]),
        node("DequantizeLinear", ["rounded_sums", "step", "nothing"], ["y"]),
    ],
    [("x", F32, ["batch", 4])],
    [("y", F32, ["batch", 2])],
    [numpy_helper.from_array(values, name) for name, values in integers.items()],
)
