"""Eight-bit forms of a model.

Weights are rounded by channel and symmetrically. Activations are rounded while the model runs (`dynamic`), or by ranges
that were found before (`static`), told by pairs of QuantizeLinear and DequantizeLinear, which every engine understands.
"""

import logging
import pathlib
import tempfile

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data

from . import model as models
from .errors import Refused

LINEAR = ("MatMul", "Gemm")


def weighty(model):
    kinds = {node.op_type for node in model.graph.node}
    if not kinds & {"Conv", *LINEAR}:
        raise Refused("it has neither convolutions nor linear layers, so eight bits gain nothing")
    return kinds


def dynamic(model, scratch):
    kinds = weighty(model)
    # ConvInteger on CPUs takes unsigned weights only.
    weights = QuantType.QUInt8 if "Conv" in kinds else QuantType.QInt8
    return through(
        scratch,
        model,
        lambda given, made: quantize_dynamic(given, made, per_channel="Conv" not in kinds, weight_type=weights),
    )


def static(model, ranges, scratch):
    """`ranges`: lowest and highest value by name of activation."""
    kinds = weighty(model)
    f32 = lambda value: np.array(value, np.float32)
    known = {name: TensorData(lowest=f32(low), highest=f32(high)) for name, (low, high) in ranges.items()}

    def make(given, made):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            cache = pathlib.Path(folder, "ranges.json")
            save_tensors_data(TensorsData(CalibrationMethod.MinMax, known), cache)
            quantize_static(
                given,
                made,
                None,
                calibration_cache_path=str(cache),
                quant_format=QuantFormat.QDQ,
                # Without convolutions it is a transformer or a perceptron: what stands between its linear layers
                # (attention, normalisation) loses more than it gains.
                op_types_to_quantize=None if "Conv" in kinds else list(LINEAR),
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                extra_options={"MatMulConstBOnly": True},
            )

    return outputs_whole(through(scratch, model, make))


def outputs_whole(model):
    """What a model answers is not rounded, for nothing computes on it: a last pair of rounding and back goes."""
    makes = {name: node for node in model.graph.node for name in node.output}
    for output in model.graph.output:
        back = makes.get(output.name)
        down = makes.get(back.input[0]) if back is not None and back.op_type == "DequantizeLinear" else None
        if down is None or down.op_type != "QuantizeLinear":
            continue
        node, name = makes.get(down.input[0]), down.input[0]
        readers = [other for other in model.graph.node if name in other.input or back.input[0] in other.input]
        if node is None or len(readers) != 2:
            continue
        node.output[list(node.output).index(name)] = output.name
        model.graph.node.remove(down)
        model.graph.node.remove(back)
    models.drop_unused(model)
    return model


def through(scratch, model, make):
    """onnxruntime's tools work on files."""
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        given, made = pathlib.Path(folder, "given.onnx"), pathlib.Path(folder, "made.onnx")
        onnx.save(model, given)
        make(str(given), str(made))
        quantised = onnx.load(made)
    if not {node.op_type for node in quantised.graph.node} & models.QUANTISED:
        raise Refused("nothing in it can be put into eight bits")
    return quantised
