"""Large linear layers as two thin ones, by singular value decomposition.

What is cut off is judged by what the layer really gets: the error that counts is that of `x @ W` for the inputs x of the
calibration data, not that of W. With C = mean of x'x and C = L L' it is the singular values of L' W that say how much each
direction matters, and W is about (L'^-1 U S) V'.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import model as models
from .errors import Refused

# What is given up of the layers' outputs, as a share of their energy: from hardly anything to much.
GIVEN_UP = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
# A layer is cut in two only if that leaves at most this share of its weights.
WORTH = 0.75
SMALLEST = 16_384
# The whole model has to shrink by so much.
GAIN = 0.10
BATCH = 16


class Layer:
    """A linear layer with a constant weight of shape inputs x outputs."""

    def __init__(self, node, weight, weight_name):
        self.node, self.weight, self.weight_name = node, weight, weight_name
        self.correlation = np.zeros((weight.shape[0], weight.shape[0]))
        self.rows = 0

    def see(self, x):
        x = np.asarray(x, np.float64).reshape(-1, self.weight.shape[0])
        self.correlation += x.T @ x
        self.rows += len(x)

    def decompose(self):
        """Both sides of the decomposition and the energy of each direction."""
        size = len(self.correlation)
        correlation = self.correlation / max(self.rows, 1)
        # Directions that were never seen keep a little weight, so that they are not lost altogether.
        floor = max(float(np.trace(correlation)) / size, 1e-12) * 1e-4
        lower = np.linalg.cholesky(correlation + floor * np.eye(size))
        u, s, vt = np.linalg.svd(lower.T @ self.weight, full_matrices=False)
        left = np.linalg.solve(lower.T, u * s)
        return left.astype(np.float32), vt.astype(np.float32), s**2

    def rank(self, energy, given_up):
        """The smallest that keeps enough, or None where two layers would be no smaller than one."""
        total = np.cumsum(energy)
        rank = int(np.searchsorted(total, total[-1] * (1.0 - given_up))) + 1
        inputs, outputs = self.weight.shape
        return rank if rank * (inputs + outputs) <= WORTH * inputs * outputs else None


def layers(model):
    constants = models.constants(model)
    found = []
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in constants:
            continue
        weight = models.array(constants[node.input[1]])
        if weight.ndim != 2 or weight.size < SMALLEST or weight.dtype != np.float32:
            continue
        if node.op_type == "Gemm":
            settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if settings.get("transA", 0) or settings.get("alpha", 1.0) != 1.0 or settings.get("beta", 1.0) != 1.0:
                continue
            weight = weight.T if settings.get("transB", 0) else weight
        found.append(Layer(node, np.ascontiguousarray(weight), node.input[1]))
    return found


def prepared(model, tensors, tell):
    """All layers that may be cut, with what they get on the data."""
    found = layers(model)
    if not found:
        raise Refused(f"it has no linear layer of {SMALLEST} weights or more")
    watched = onnx.ModelProto.FromString(model.SerializeToString())
    given = {value.name for value in models.real_inputs(watched)}
    known = {value.name for value in watched.graph.output}
    names = sorted({layer.node.input[0] for layer in found})
    for name in names:
        if name not in known | given:
            watched.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = models.session(watched, models.onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    asked = [name for name in names if name not in given]
    for number, batch in enumerate(tensors.batches(BATCH)):
        tell("inputs of linear layers", min(number * BATCH, tensors.count), tensors.count)
        seen = dict(zip(asked, session.run(asked, batch))) | batch
        for layer in found:
            layer.see(seen[layer.node.input[0]])
    return [(layer, layer.decompose()) for layer in found]


def cut(model, decomposed, given_up):
    """The model with its layers cut in two, and how many they are. None where hardly anything is gained."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    before, count = models.parameters(model), 0
    nodes = {node.output[0]: node for node in made.graph.node}
    for layer, (left, right, energy) in decomposed:
        rank = layer.rank(energy, given_up)
        if rank is None:
            continue
        count += 1
        node = nodes[layer.node.output[0]]
        name = f"{layer.weight_name}.cut{count}"
        thin = [numpy_helper.from_array(np.ascontiguousarray(side), f"{name}.{at}") for at, side in enumerate((left[:, :rank], right[:rank]))]
        made.graph.initializer.extend(thin)
        between = f"{node.output[0]}.thin{count}"
        first = helper.make_node("MatMul", [node.input[0], thin[0].name], [between], name=f"{name}.first")
        if node.op_type == "Gemm":
            second = helper.make_node("Gemm", [between, thin[1].name, *node.input[2:]], list(node.output), name=f"{name}.second")
        else:
            second = helper.make_node("MatMul", [between, thin[1].name], list(node.output), name=f"{name}.second")
        at = list(made.graph.node).index(node)
        made.graph.node.remove(node)
        made.graph.node.insert(at, first)
        made.graph.node.insert(at + 1, second)
    if count == 0:
        return None
    models.drop_unused(made)
    return made if models.parameters(made) <= (1.0 - GAIN) * before else None
