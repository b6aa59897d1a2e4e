"""ONNX as TorchScript: the text of a class that does what a graph does, and its weights.

Each node becomes a line or a few. What a graph computes of shapes becomes integers, as PyTorch's own modules have them. An
operator that is not here is refused by its name.
"""

import numpy as np
import onnx
from onnx import helper

from . import archive, model as models
from .errors import Refused

# ONNX's element types as TorchScript numbers them.
SCALARS = {1: 6, 2: 0, 3: 1, 5: 2, 6: 3, 7: 4, 9: 11, 10: 5, 11: 7}
UNARY = {
    "Abs": "abs", "Ceil": "ceil", "Cos": "cos", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Log": "log", "Neg": "neg",
    "Not": "logical_not", "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Sigmoid": "sigmoid", "Sin": "sin",
    "Softplus": "softplus", "Sqrt": "sqrt", "Tanh": "tanh", "HardSwish": "hardswish",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Pow": "pow", "And": "logical_and", "Or": "logical_or", "Equal": "eq",
    "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "MatMul": "matmul",
}  # fmt: skip
ARITHMETIC = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "//"}
REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin"}


class Ints:
    """Integers that are known or computed of shapes: expressions, as a row or alone."""

    def __init__(self, parts, alone=False):
        self.parts, self.alone = [str(part) for part in parts], alone

    def known(self):
        return all(part.removeprefix("-").isdigit() for part in self.parts)


class Text:
    """A class as it grows."""

    def __init__(self, model):
        self.model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        graph = self.model.graph
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        values = [*graph.input, *graph.output, *graph.value_info]
        self.types = {value.name: value.type.tensor_type for value in values}
        self.constants = {name: models.array(tensor) for name, tensor in models.constants(model).items()}
        self.lines, self.weights, self.known = [], {}, {}

    def whole(self):
        inputs = [value.name for value in models.real_inputs(self.model)]
        for number, name in enumerate(inputs):
            self.known[name] = f"x{number}"
        for node in self.model.graph.node:
            if node.op_type != "Constant":
                self.node(node)
        outputs = [value.name for value in self.model.graph.output]
        given = [self.tensor(name) for name in outputs]
        entries = ", ".join(f'"{name}": {value}' for name, value in zip(outputs, given))
        for number, (name, value) in enumerate(self.weights.items()):
            self.lines.insert(number, f"{name} = self.{name}")
        parameters = "".join(f'"{name}", ' for name in self.weights)
        head = ["class Net(Module):", f"  __parameters__ = [{parameters}]", "  __buffers__ = []"]
        held = [f"  {name} : Tensor" for name in self.weights] + ["  training : bool"]
        takes = "".join(f",\n    x{number}: Tensor" for number in range(len(inputs)))
        gives = f"return {{{entries}}}"
        method = f"  def forward(self: __torch__.Net{takes}) -> Dict[str, Tensor]:"
        return "\n".join([*head, *held, method, *(f"    {line}" for line in [*self.lines, gives])]) + "\n"

    # What a node is given.

    def tensor(self, name):
        """As the name of a tensor."""
        value = self.known.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, Ints):
            row = value.parts[0] if value.alone else f"[{', '.join(value.parts)}]"
            return self.say(name, f"torch.tensor({row if value.alone else f'annotate(List[int], {row})'}, dtype=4)")
        if name not in self.constants:
            raise Refused(f"it uses `{name}`, which nothing makes")
        array = self.constants[name]
        if array.dtype not in [np.dtype(kind) for kind in archive.ELEMENTS.values()]:
            raise Refused(f"it has numbers of a type ({array.dtype}) that is not converted")
        weight = f"w{len(self.weights)}"
        self.weights[weight] = array
        self.known[name] = weight
        return weight

    def ints(self, name):
        """As integers, known or computed."""
        value = self.known.get(name)
        if isinstance(value, Ints):
            return value
        array = self.constants.get(name)
        if array is not None and array.dtype.kind in "iu" and array.ndim < 2:
            return Ints(array.reshape(-1).tolist(), alone=array.ndim == 0)
        return None

    def row(self, name, why):
        found = self.ints(name)
        if found is not None:
            return found.parts
        axes = self.types[name].shape.dim if name in self.types else []
        if len(axes) != 1 or not axes[0].dim_value:
            raise Refused(f"{why} is computed in a way that is not converted")
        row = self.tensor(name)
        return [f"int(torch.select({row}, 0, {at}))" for at in range(axes[0].dim_value)]

    def fixed(self, node, at, why):
        """A constant of a node, or None."""
        if len(node.input) <= at or not node.input[at]:
            return None
        if node.input[at] not in self.constants:
            raise Refused(f"{why} is computed while it runs, which is not converted")
        return self.constants[node.input[at]]

    def rank(self, name):
        if name in self.constants:
            return self.constants[name].ndim
        about = self.types.get(name)
        if about is None or not about.HasField("shape"):
            raise Refused(f"nothing says how many axes `{name}` has")
        return len(about.shape.dim)

    def kind(self, name):
        if name in self.constants:
            return helper.np_dtype_to_tensor_dtype(self.constants[name].dtype)
        return self.types[name].elem_type if name in self.types else onnx.TensorProto.FLOAT

    def axis(self, value, rank):
        return value + rank if value < 0 else value

    # What it becomes.

    def say(self, name, expression):
        made = f"t{len(self.lines)}"
        self.lines.append(f"{made} = {expression}")
        if name:
            self.known[name] = made
        return made

    def node(self, node):
        kind, about = node.op_type, {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.domain not in ("", "ai.onnx"):
            raise Refused(f"the operator {node.domain}.{kind} has no form in TorchScript here")
        if self.of_shapes(node, kind, about):
            return
        expression = self.plain(node, kind)
        if expression is None:
            form = getattr(self, f"on_{kind.lower()}", None)
            if form is None:
                raise Refused(f"the operator {kind} has no form in TorchScript here")
            expression = form(node, about)
        if expression is not None:
            self.say(node.output[0], expression)

    def of_shapes(self, node, kind, about):
        """Integers stay integers. Whether it was one of those."""
        out = node.output[0]
        if kind == "Shape":
            rank, whole = self.rank(node.input[0]), self.tensor(node.input[0])
            start, end = about.get("start", 0), about.get("end", rank)
            self.known[out] = Ints([self.say("", f"torch.size({whole}, {axis})") for axis in range(rank)][start:end])
            return True
        found = [self.ints(name) for name in node.input if name]
        if not found or found[0] is None or all(name in self.constants for name in node.input if name):
            return False
        first, others = found[0], found[1:]
        picks = kind in ("Gather", "Slice") and all(one is not None and one.known() for one in others)
        if kind in ("Identity", "Cast"):
            if kind == "Cast" and about["to"] not in (6, 7):
                return False
            self.known[out] = first
        elif kind in ("Unsqueeze", "Squeeze"):
            if len(first.parts) != 1:
                return False
            self.known[out] = Ints(first.parts, alone=kind == "Squeeze")
        elif kind == "Reshape" and others[0] is not None and others[0].parts == ["-1"]:
            self.known[out] = Ints(first.parts)
        elif kind == "Concat" and None not in others:
            self.known[out] = Ints([part for one in found for part in one.parts])
        elif kind == "Gather" and picks:
            at = [first.parts[int(part)] for part in others[0].parts]
            self.known[out] = Ints(at, alone=others[0].alone)
        elif kind == "Slice" and picks:
            numbers = [int(one.parts[0]) for one in others]
            step = numbers[3] if len(numbers) > 3 else 1
            end = min(numbers[1], len(first.parts))
            self.known[out] = Ints(first.parts[numbers[0] : end : step])
        elif kind in ARITHMETIC and None not in others:
            sides = zip(*(one.parts * max(len(o.parts) for o in found) if len(one.parts) == 1 else one.parts for one in found))
            made = [self.say("", f" {ARITHMETIC[kind]} ".join(f"({side})" for side in pair)) for pair in sides]
            self.known[out] = Ints(made, alone=all(one.alone for one in found))
        else:
            return False
        return True

    def plain(self, node, kind):
        if kind in UNARY:
            return f"torch.{UNARY[kind]}({self.tensor(node.input[0])})"
        if kind in BINARY:
            one, other = map(self.tensor, node.input)
            return f"torch.{BINARY[kind]}({one}, {other})"
        if kind in ("Max", "Min"):
            word = "maximum" if kind == "Max" else "minimum"
            first, *rest = map(self.tensor, node.input)
            for other in rest:
                first = f"torch.{word}({first}, {other})"
            return first
        return None

    def on_identity(self, node, about):
        self.known[node.output[0]] = self.tensor(node.input[0])

    on_dropout = on_identity

    def on_div(self, node, about):
        one, other = map(self.tensor, node.input)
        whole = self.kind(node.input[0]) not in (1, 10, 11)
        return f"torch.div({one}, {other}" + (', rounding_mode="trunc")' if whole else ")")

    def on_where(self, node, about):
        return f"torch.where({', '.join(map(self.tensor, node.input))})"

    def on_cast(self, node, about):
        if about["to"] not in SCALARS:
            raise Refused("it casts to a type that is not converted")
        return f"torch.to({self.tensor(node.input[0])}, {SCALARS[about['to']]})"

    def on_clip(self, node, about):
        low, high = self.fixed(node, 1, "a limit of Clip"), self.fixed(node, 2, "a limit of Clip")
        low = about.get("min") if low is None else low
        high = about.get("max") if high is None else high
        limit = lambda value: "None" if value is None else repr(float(np.reshape(value, -1)[0]))
        return f"torch.clamp({self.tensor(node.input[0])}, {limit(low)}, {limit(high)})"

    def on_leakyrelu(self, node, about):
        return f"torch.leaky_relu({self.tensor(node.input[0])}, {float(about.get('alpha', 0.01))!r})"

    def on_elu(self, node, about):
        return f"torch.elu({self.tensor(node.input[0])}, {float(about.get('alpha', 1.0))!r})"

    def on_gelu(self, node, about):
        form = about.get("approximate", b"none").decode()
        return f'torch.gelu({self.tensor(node.input[0])}, approximate="{form}")'

    def on_hardsigmoid(self, node, about):
        alpha, beta = float(about.get("alpha", 0.2)), float(about.get("beta", 0.5))
        return f"torch.clamp(torch.add(torch.mul({self.tensor(node.input[0])}, {alpha!r}), {beta!r}), 0.0, 1.0)"

    def softmax(self, node, about, word):
        if self.opset < 13 and about.get("axis", 1) not in (-1, self.rank(node.input[0]) - 1):
            raise Refused(f"{node.op_type} of opset {self.opset} over several axes is not converted")
        return f"torch.{word}({self.tensor(node.input[0])}, {about.get('axis', -1)})"

    def on_softmax(self, node, about):
        return self.softmax(node, about, "softmax")

    def on_logsoftmax(self, node, about):
        return self.softmax(node, about, "log_softmax")

    def padded(self, node, about, count):
        """The input, and what a convolution or pooling pads by itself."""
        if about.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            raise Refused(f"{node.op_type} with auto_pad is not converted")
        pads = about.get("pads", [0] * 2 * count)
        x = self.tensor(node.input[0])
        if pads[:count] == pads[count:]:
            return x, pads[:count]
        if node.op_type != "Conv":
            raise Refused(f"{node.op_type} that pads one side only is not converted")
        sides = [side for axis in reversed(range(count)) for side in (pads[axis], pads[axis + count])]
        return f"torch.constant_pad_nd({x}, {sides})", [0] * count

    def on_conv(self, node, about):
        count = self.rank(node.input[1]) - 2
        x, pads = self.padded(node, about, count)
        bias = self.tensor(node.input[2]) if len(node.input) > 2 and node.input[2] else "None"
        strides, dilations = about.get("strides", [1] * count), about.get("dilations", [1] * count)
        what = f"{x}, {self.tensor(node.input[1])}, {bias}, {strides}, {pads}, {dilations}"
        return f"torch.conv{count}d({what}, {about.get('group', 1)})"

    def on_maxpool(self, node, about):
        shape = about["kernel_shape"]
        x, pads = self.padded(node, about, len(shape))
        strides, dilations = about.get("strides", [1] * len(shape)), about.get("dilations", [1] * len(shape))
        return f"torch.max_pool{len(shape)}d({x}, {shape}, {strides}, {pads}, {dilations}, {bool(about.get('ceil_mode', 0))})"

    def on_averagepool(self, node, about):
        shape = about["kernel_shape"]
        x, pads = self.padded(node, about, len(shape))
        strides, counted = about.get("strides", [1] * len(shape)), bool(about.get("count_include_pad", 0))
        return f"torch.avg_pool{len(shape)}d({x}, {shape}, {strides}, {pads}, {bool(about.get('ceil_mode', 0))}, {counted})"

    def on_globalaveragepool(self, node, about):
        return f"torch.mean({self.tensor(node.input[0])}, {list(range(2, self.rank(node.input[0])))}, True)"

    def on_globalmaxpool(self, node, about):
        return f"torch.amax({self.tensor(node.input[0])}, {list(range(2, self.rank(node.input[0])))}, True)"

    def on_batchnormalization(self, node, about):
        x, scale, shift, mean, variance = map(self.tensor, node.input)
        return f"torch.batch_norm({x}, {scale}, {shift}, {mean}, {variance}, False, 0.0, {float(about.get('epsilon', 1e-5))!r}, False)"

    def on_layernormalization(self, node, about):
        rank, scale = self.rank(node.input[0]), self.constants.get(node.input[1])
        if scale is None or self.axis(about.get("axis", -1), rank) != rank - scale.ndim or len(node.output) > 1:
            raise Refused("LayerNormalization in this form is not converted")
        x, weight = self.tensor(node.input[0]), self.tensor(node.input[1])
        bias = self.tensor(node.input[2]) if len(node.input) > 2 and node.input[2] else "None"
        return f"torch.layer_norm({x}, {list(scale.shape)}, {weight}, {bias}, {float(about.get('epsilon', 1e-5))!r})"

    def on_gemm(self, node, about):
        turned = lambda at, flag: f"torch.t({self.tensor(node.input[at])})" if about.get(flag, 0) else self.tensor(node.input[at])
        one, other = turned(0, "transA"), turned(1, "transB")
        alpha, beta = float(about.get("alpha", 1.0)), float(about.get("beta", 1.0))
        bias = node.input[2] if len(node.input) > 2 else ""
        if about.get("transB", 0) and alpha == beta == 1.0 and bias and self.rank(bias) == 1:
            return f"torch.linear({one}, {self.tensor(node.input[1])}, {self.tensor(bias)})"
        product = f"torch.matmul({one}, {other})"
        if alpha != 1.0:
            product = f"torch.mul({product}, {alpha!r})"
        if not bias:
            return product
        bias = self.tensor(bias)
        return f"torch.add({product}, {bias if beta == 1.0 else f'torch.mul({bias}, {beta!r})'})"

    def on_flatten(self, node, about):
        axis, x = self.axis(about.get("axis", 1), self.rank(node.input[0])), self.tensor(node.input[0])
        if axis != 1:
            raise Refused("Flatten of other axes than all but the first is not converted")
        return f"torch.flatten({x}, 1)"

    def on_reshape(self, node, about):
        wanted, x = self.row(node.input[1], "a shape"), self.tensor(node.input[0])
        if about.get("allowzero", 0):
            raise Refused("Reshape with allowzero is not converted")
        wanted = [f"torch.size({x}, {at})" if part == "0" else part for at, part in enumerate(wanted)]
        return f"torch.reshape({x}, [{', '.join(wanted)}])"

    def on_expand(self, node, about):
        # It may keep an axis of its own where one is asked for, which PyTorch's may not.
        wanted = self.row(node.input[1], "a shape")
        ones = f"torch.ones([{', '.join(wanted)}], dtype={SCALARS[self.kind(node.input[0])]})"
        return f"torch.mul({self.tensor(node.input[0])}, {ones})"

    def on_constantofshape(self, node, about):
        value = models.array(about["value"]).reshape(-1)[0] if "value" in about else np.float32(0)
        kind = SCALARS[helper.np_dtype_to_tensor_dtype(value.dtype)]
        return f"torch.full([{', '.join(self.row(node.input[0], 'a shape'))}], {value.item()!r}, dtype={kind})"

    def on_transpose(self, node, about):
        order = about.get("perm", list(reversed(range(self.rank(node.input[0])))))
        return f"torch.permute({self.tensor(node.input[0])}, {list(order)})"

    def axes(self, node, about, at=1):
        if "axes" in about:
            return list(about["axes"])
        found = self.fixed(node, at, "an axis")
        return None if found is None else found.reshape(-1).tolist()

    def on_unsqueeze(self, node, about):
        x, axes = self.tensor(node.input[0]), self.axes(node, about)
        rank = self.rank(node.input[0]) + len(axes)
        for axis in sorted(self.axis(axis, rank) for axis in axes):
            x = f"torch.unsqueeze({x}, {axis})"
        return x

    def on_squeeze(self, node, about):
        x, axes, rank = self.tensor(node.input[0]), self.axes(node, about), self.rank(node.input[0])
        if axes is None:
            raise Refused("Squeeze without its axes is not converted")
        for axis in sorted((self.axis(axis, rank) for axis in axes), reverse=True):
            x = f"torch.squeeze({x}, {axis})"
        return x

    def on_concat(self, node, about):
        return f"torch.cat([{', '.join(map(self.tensor, node.input))}], {about['axis']})"

    def on_gather(self, node, about):
        x, at, rank = self.tensor(node.input[0]), self.tensor(node.input[1]), self.rank(node.input[0])
        axis, many = self.axis(about.get("axis", 0), rank), self.rank(node.input[1])
        if axis == 0 and rank == 2 and self.kind(node.input[0]) == 1:
            return f"torch.embedding({x}, {at})"
        flat = f"torch.index_select({x}, {axis}, torch.reshape({at}, [-1]))"
        if many == 1:
            return flat
        before = [f"torch.size({x}, {one})" for one in range(axis)]
        middle = [f"torch.size({at}, {one})" for one in range(many)]
        after = [f"torch.size({x}, {one})" for one in range(axis + 1, rank)]
        return f"torch.reshape({flat}, [{', '.join([*before, *middle, *after])}])"

    def on_slice(self, node, about):
        x, rank = self.tensor(node.input[0]), self.rank(node.input[0])
        starts, ends = self.row(node.input[1], "where a slice begins"), self.row(node.input[2], "where a slice ends")
        axes, steps = self.axes(node, {}, 3) or list(range(len(starts))), self.fixed(node, 4, "a step")
        for number, axis in enumerate(axes):
            step = 1 if steps is None else int(steps.reshape(-1)[number])
            if step < 1:
                raise Refused("Slice that goes backwards is not converted")
            x = f"torch.slice({x}, {self.axis(axis, rank)}, {starts[number]}, {ends[number]}, {step})"
        return x

    def on_split(self, node, about):
        x, axis = self.tensor(node.input[0]), about.get("axis", 0)
        sizes = about.get("split") or self.fixed(node, 1, "a size of Split")
        if sizes is None:
            raise Refused("Split without sizes is not converted")
        start = 0
        for name, size in zip(node.output, [int(size) for size in sizes]):
            self.say(name, f"torch.slice({x}, {self.axis(axis, self.rank(node.input[0]))}, {start}, {start + size}, 1)")
            start += size

    def on_pad(self, node, about):
        pads, value = self.fixed(node, 1, "a padding"), self.fixed(node, 2, "what it pads with")
        if pads is None or about.get("mode", b"constant") != b"constant" or (len(node.input) > 3 and node.input[3]):
            raise Refused("Pad in this form is not converted")
        count = len(pads) // 2
        sides = [int(side) for axis in reversed(range(count)) for side in (pads[axis], pads[axis + count])]
        return f"torch.constant_pad_nd({self.tensor(node.input[0])}, {sides}, {0.0 if value is None else value.item()!r})"

    def reduced(self, node, about):
        x, rank, axes = self.tensor(node.input[0]), self.rank(node.input[0]), self.axes(node, about)
        if axes is None and about.get("noop_with_empty_axes", 0):
            return x
        axes = list(range(rank)) if axes is None else [self.axis(axis, rank) for axis in axes]
        return f"torch.{REDUCTIONS[node.op_type]}({x}, {axes}, {bool(about.get('keepdims', 1))})"

    on_reducemean = on_reducesum = on_reducemax = on_reducemin = reduced


def converted(model):
    """The file. `model` is in fp32."""
    text = Text(model)
    code = text.whole()
    return archive.written(code, text.weights)
