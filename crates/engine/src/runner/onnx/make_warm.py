"""Makes the model that a runner rehearses with. Needs the package `onnx`; the file is committed.

    python make_warm.py
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
random = np.random.default_rng(0)
node = helper.make_node
value = helper.make_tensor_value_info


def weights(name, *shape):
    return numpy_helper.from_array((random.standard_normal(shape) * 0.1).astype(np.float32), name)


graph = helper.make_graph(
    [
        # What networks for pictures are made of...
        node("Conv", ["picture", "kernel", "kernel_bias"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "dense", "dense_bias"], ["label"], transB=1),
        # ... and those for sentences.
        node("Gather", ["table", "words"], ["t"]),
        node("MatMul", ["t", "square"], ["m"]),
        node("Add", ["m", "square_bias"], ["a"]),
        node("ReduceMean", ["a"], ["mean"], axes=[-1]),
        node("Sub", ["a", "mean"], ["s"]),
        node("Mul", ["s", "s"], ["q"]),
        node("Softmax", ["q"], ["soft"], axis=-1),
        node("Transpose", ["soft"], ["turned"], perm=[0, 2, 1]),
        node("Reshape", ["turned", "flat"], ["sentence"]),
    ],
    "warm",
    [value("picture", FLOAT, ["batch", 1, 8, 8]), value("words", INT64, ["batch", 4])],
    [value("label", FLOAT, ["batch", 2]), value("sentence", FLOAT, ["batch", 16])],
    [
        weights("kernel", 2, 1, 3, 3),
        weights("kernel_bias", 2),
        weights("dense", 2, 2),
        weights("dense_bias", 2),
        weights("table", 3, 4),
        weights("square", 4, 4),
        weights("square_bias", 4),
        numpy_helper.from_array(np.array([-1, 16], dtype=np.int64), "flat"),
    ],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 8
checker.check_model(model)
save_model(model, Path(__file__).with_name("warm.onnx"))
