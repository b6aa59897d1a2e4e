"""Small models and data for tests, from seeds."""

import json
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def weight(rng, *shape, scale=None):
    return (rng.standard_normal(shape) * (scale or 1.0 / np.sqrt(shape[0]))).astype(np.float32)


def model(nodes, weights, inputs, outputs, opset=17):
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    tensor = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "made", [tensor(*i) for i in inputs], [tensor(*o) for o in outputs], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def perceptron(rank=8, seed=0):
    """Its first layer has a low rank by construction, with a little beside it."""
    rng = np.random.default_rng(seed)
    low = weight(rng, 256, rank) @ weight(rng, rank, 128, scale=1.0) + 0.001 * weight(rng, 256, 128, scale=1.0)
    weights = {"a": low.astype(np.float32), "b": weight(rng, 128), "c": weight(rng, 128, 10), "d": weight(rng, 10, scale=0.1)}
    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "c", "d"], ["y"]),
    ]
    return model(nodes, weights, [("x", ["N", 256])], [("y", ["N", 10])])


def convolutions(flat=False, seed=0, size=12):
    """Fully convolutional, unless it is to count on the size of its input."""
    rng = np.random.default_rng(seed)
    weights = {"w": weight(rng, 8, 1, 3, 3, scale=0.4), "v": weight(rng, 16, 8, 3, 3, scale=0.2)}
    weights |= {"s": np.ones(8, np.float32), "t": np.zeros(8, np.float32), "m": weight(rng, 8, scale=0.1), "u": np.ones(8, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["h", "s", "t", "m", "u"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["g"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["g"], ["q"]),
    ]
    if flat:
        weights["z"] = weight(rng, 16 * size * size, 10)
        nodes += [helper.make_node("Flatten", ["q"], ["f"])]
    else:
        weights["z"] = weight(rng, 16, 10)
        nodes += [helper.make_node("GlobalAveragePool", ["q"], ["p"]), helper.make_node("Flatten", ["p"], ["f"])]
    nodes += [helper.make_node("MatMul", ["f", "z"], ["y"])]
    return model(nodes, weights, [("x", ["N", 1, size, size])], [("y", ["N", 10])])


def dump(folder, values, name="x", labels=None):
    """As `modelless variant dump` writes it."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "input-0.npy", values)
    np.save(folder / "labels.npy", np.zeros(len(values), np.int64) if labels is None else labels)
    (folder / "dump.json").write_text(json.dumps({"inputs": [{"name": name, "file": "input-0.npy"}], "batch": 32}))


def job(folder, parent, shape, recipes, items=64, sizes=(), **more):
    """A job as the command writes it, ready to run."""
    folder = pathlib.Path(folder)
    rng = np.random.default_rng(1)
    (folder / "made").mkdir()
    (folder / "parent.onnx").write_bytes(parent.SerializeToString() if isinstance(parent, onnx.ModelProto) else parent)
    bases = [{"name": "", "calibration": "calibration", "check": "check", "recipes": list(recipes)}]
    for part in ("calibration", "check"):
        values = rng.standard_normal((items, *shape)).astype(np.float32)
        dump(folder / part, values)
        for size in sizes:
            dump(folder / f"{part}-{size}", values[:, :, :size, :size])
    for size in sizes:
        about = {"name": f"at-{size}", "size": [shape[0], size, size], "recipes": ["fp32", "int8-entropy"]}
        bases.append(about | {"calibration": f"calibration-{size}", "check": f"check-{size}"})
    about = {"parent": "parent.onnx", "parent_sha256": "p", "data_sha256": "d", "kind": "image-classification"}
    return about | {"made": "made", "input": "x", "bases": bases} | more
