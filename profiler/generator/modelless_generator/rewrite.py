"""Other forms of a model with the same weights: simplified, in half precision, for smaller pictures."""

import pathlib
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from onnxruntime.transformers.float16 import convert_float_to_float16

from . import model as models
from .errors import Refused


def optimised(model, scratch):
    """Constants folded, normalisations merged into convolutions, what is unused removed: what changes no result and needs no
    operator beyond ONNX, so that it runs on every machine and engine. What fits one processor only is left to loading."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = pathlib.Path(folder, "optimised.onnx")
        options = models.options(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made = onnx.load(path)
    # It lists operators that it could have used.
    used = {node.domain for node in made.graph.node}
    for opset in [opset for opset in made.opset_import if opset.domain not in used | {""}]:
        made.opset_import.remove(opset)
    return made


def same_graph(one, other):
    """Whether two models have the same nodes and as many weights, in which case one of them is enough."""
    kinds = lambda model: [node.op_type for node in model.graph.node]
    return kinds(one) == kinds(other) and models.parameters(one) == models.parameters(other)


def half(model):
    """Weights and arithmetic in sixteen bits; inputs and outputs stay as they are, so that the same adapter fits."""
    return convert_float_to_float16(onnx.ModelProto.FromString(model.SerializeToString()), keep_io_types=True)


def at_size(model, name, shape, batch_axis="N"):
    """The same weights for an input of another shape. Refused where a layer counts on the old one."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    inputs = models.real_inputs(made)
    value = next((value for value in inputs if value.name == name), None)
    if value is None:
        raise Refused(f"it has no input `{name}`")
    axes = value.type.tensor_type.shape.dim
    if len(axes) != len(shape) + 1:
        raise Refused(f"its input has {len(axes)} axes, not {len(shape) + 1}")
    for axis, extent in zip(list(axes)[1:], shape):
        axis.Clear()
        axis.dim_value = extent
    # Shapes of what lies between are found again; those of the outputs have to stay as they are.
    del made.graph.value_info[:]
    try:
        made = onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)
        session = models.session(made)
        shapes = [output.shape for output in session.get_outputs()]
        batch = np.zeros((1, *shape), np.float32)
        others = [i.name for i in session.get_inputs() if i.name != name]
        if others:
            raise Refused("it has other inputs beside the picture")
        found = session.run(None, {name: batch.astype(numpy_type(value))})
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"a layer of it counts on the size of its input: {models.first_line(error)}") from error
    for output, told in zip(found, shapes):
        fixed = [extent for extent in told[1:] if isinstance(extent, int)]
        if len(fixed) == len(told) - 1 and list(output.shape[1:]) != fixed:
            raise Refused("its output would have another shape")
    return made


def numpy_type(value):
    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type or TensorProto.FLOAT)
