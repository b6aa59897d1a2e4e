"""Reading a model that nobody vouches for, and running it."""

import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

from .errors import BadInput

DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
QUANTISED = {
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "QLinearConv",
    "QLinearMatMul",
}
# What protobuf takes in one message.
LARGEST = (1 << 31) - 1


def read(content):
    """A checked model in fp32, with all of its weights in it."""
    if len(content) > LARGEST:
        raise BadInput("too-large", f"the model has {len(content)} bytes; more than {LARGEST} do not fit one ONNX file")
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf has errors of its own in each of its implementations
        raise BadInput("corrupt-model", f"the model is no ONNX file, or damaged: {error}") from error
    if not model.graph.node or not model.graph.output:
        raise BadInput("corrupt-model", "the model has no nodes or no outputs: it is no ONNX file, or damaged")
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain not in DOMAINS:
            raise BadInput("unknown-opset", f"the model uses operators of {opset.domain!r}; known are {known_domains()}")
        if opset.domain in ("", "ai.onnx") and not 1 <= opset.version <= newest:
            raise BadInput(
                "unknown-opset",
                f"the model is written in opset {opset.version}; this tool knows 1 to {newest}: export it again with one of them",
            )
    if any(weight.data_location == TensorProto.EXTERNAL for weight in model.graph.initializer):
        raise BadInput("external-weights", "the model's weights lie in files beside it; save it as one file")
    kinds = {node.op_type for node in model.graph.node}
    if kinds & QUANTISED:
        raise BadInput("already-quantised", "the model is quantised already; give the one that it was made of")
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        raise BadInput("corrupt-model", f"the model is damaged: {first_line(error)}") from error
    return model


def known_domains():
    return ", ".join(sorted(repr(domain) for domain in DOMAINS if domain))


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def options(level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = made.inter_op_num_threads = 1
    made.log_severity_level = 4
    # As it will be served: without it products of eight bits saturate on processors that have no VNNI.
    made.add_session_config_entry("session.x64quantprecision", "1")
    made.graph_optimization_level = level
    return made


def session(model, level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
    return onnxruntime.InferenceSession(model.SerializeToString(), options(level), providers=["CPUExecutionProvider"])


def parent_session(model):
    """The model as it was given must run, or nothing that is made of it can."""
    try:
        return session(model)
    except MemoryError:
        raise
    except Exception as error:
        raise BadInput("cannot-run", f"ONNX Runtime does not take the model: {first_line(error)}") from error


def initializers(model):
    return {weight.name: weight for weight in model.graph.initializer}


def constants(model):
    """Weights as arrays, those of Constant nodes among them."""
    found = {weight.name: weight for weight in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if value is not None:
                found[node.output[0]] = value
    return found


def array(tensor):
    return numpy_helper.to_array(tensor)


def parameters(model):
    """How many numbers a model has learnt."""
    total = 0
    for tensor in constants(model).values():
        count = 1
        for extent in tensor.dims:
            count *= extent
        total += count
    return total


def real_inputs(model):
    weights = initializers(model)
    return [value for value in model.graph.input if value.name not in weights]


def drop_unused(model):
    used = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    for weight in [weight for weight in model.graph.initializer if weight.name not in used]:
        model.graph.initializer.remove(weight)
    for node in [node for node in model.graph.node if node.op_type == "Constant" and node.output[0] not in used]:
        model.graph.node.remove(node)
    weights = {weight.name for weight in model.graph.initializer}
    for value in [value for value in model.graph.input if value.name not in used | weights and len(model.graph.input) > 1]:
        model.graph.input.remove(value)
