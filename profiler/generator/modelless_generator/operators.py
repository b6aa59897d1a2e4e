"""What PyTorch's operators are in ONNX, one node or a few each."""

import operator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .errors import BadInput

# PyTorch's numbers of element types.
TYPES = {0: 2, 1: 3, 2: 5, 3: 6, 4: 7, 5: 10, 6: 1, 7: 11, 11: 9}
FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
UNARY = {
    "abs": "Abs", "ceil": "Ceil", "cos": "Cos", "erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log", "neg": "Neg",
    "logical_not": "Not", "bitwise_not": "Not", "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round", "sigmoid": "Sigmoid",
    "sin": "Sin", "softplus": "Softplus", "sqrt": "Sqrt", "tanh": "Tanh", "hardswish": "HardSwish",
}  # fmt: skip
BINARY = {"mul": "Mul", "pow": "Pow", "matmul": "MatMul", "bmm": "MatMul", "mm": "MatMul", "maximum": "Max", "minimum": "Min"}
COMPARED = {"eq": "Equal", "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual"}
SAME = ("contiguous", "detach", "alias", "clone", "NumToTensor", "Int", "ScalarImplicit", "lift_fresh", "detach_")
OPSET = 17
# Weights that shapes may be computed of have no more numbers.
SMALL = 64
# Of one side, where PyTorch says all of them.
END = (1 << 62) - 1


def refused(what):
    return BadInput("unknown-operator", f"{what} of TorchScript is not converted to ONNX")


def both(value):
    """One number for both axes, or two."""
    return [value] * 2 if isinstance(value, int) else list(value) * (3 - len(value))


class Tensor:
    """A name in the graph. What is done to it in place gives it another."""

    def __init__(self, name, kind):
        self.name, self.kind = name, kind


class Operators:
    """A graph as it grows."""

    def __init__(self):
        self.nodes, self.weights, self.inputs, self.known = [], {}, [], {}
        self.shapes = {}

    # Parts of a graph.

    def input(self, name, kind, shape):
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return Tensor(name, kind)

    def weight(self, value):
        """The same array is there once."""
        if id(value) not in self.known:
            name = f"w{len(self.weights)}"
            self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
            # Kept, so that no other has its place in memory.
            self.known[id(value)] = value, Tensor(name, self.weights[name].data_type)
        kept = self.known[id(value)][1]
        return Tensor(kept.name, kept.kind)

    def constant(self, value, kind):
        return self.weight(np.array(value, helper.tensor_dtype_to_np_dtype(kind)))

    def ints(self, value):
        return self.constant(value, TensorProto.INT64)

    def node(self, kind, inputs, gives=None, **about):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, ["" if one is None else one.name for one in inputs], [name], **about))
        return Tensor(name, inputs[0].kind if gives is None else gives)

    def whole(self, outputs):
        """A checked model with these outputs."""
        rows = []
        for name, value in outputs:
            self.nodes.append(helper.make_node("Identity", [value.name], [name]))
            rows.append(helper.make_tensor_value_info(name, value.kind, None))
        graph = helper.make_graph(self.nodes, "from-torchscript", self.inputs, rows, list(self.weights.values()))
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        shaped = onnx.shape_inference.infer_shapes(made, data_prop=True)
        for output, found in zip(made.graph.output, shaped.graph.output):
            output.CopyFrom(found)
            axes = output.type.tensor_type.shape.dim
            if axes:
                axes[0].Clear()
                axes[0].dim_param = "N"
        return made

    def shape(self, value):
        """What is known of a tensor's axes; numbers where they are."""
        if value.name in self.weights:
            return list(self.weights[value.name].dims)
        if value.name not in self.shapes:
            self.look(value)
        if value.name not in self.shapes:
            raise refused("something whose number of axes is not known")
        return self.shapes[value.name]

    def look(self, value):
        """Finds the shapes of all that there is by now. Of large weights only their shape is of use for that."""
        small = [weight for weight in self.weights.values() if np.prod(weight.dims, dtype=np.int64) <= SMALL]
        names = {weight.name for weight in small}
        others = [
            helper.make_tensor_value_info(name, weight.data_type, weight.dims)
            for name, weight in self.weights.items()
            if name not in names
        ]
        row = [helper.make_tensor_value_info(value.name, value.kind, None)]
        graph = helper.make_graph(self.nodes, "part", [*self.inputs, *others], row, small)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        for one in [*found.value_info, *found.output, *found.input]:
            if one.type.tensor_type.HasField("shape"):
                axes = one.type.tensor_type.shape.dim
                self.shapes[one.name] = [axis.dim_value if axis.HasField("dim_value") else None for axis in axes]

    def rank(self, value):
        return len(self.shape(value))

    # Values of one kind.

    def tensor(self, value, like=None):
        if isinstance(value, Tensor):
            return value
        if isinstance(value, bool):
            return self.constant(value, TensorProto.BOOL if like is None else like)
        kind = TensorProto.FLOAT if isinstance(value, float) else TensorProto.INT64
        return self.constant(value, kind if like is None or (isinstance(value, float) and like not in FLOATS) else like)

    def alike(self, one, other):
        """Both sides in one type, as PyTorch would have them."""
        if not isinstance(one, Tensor):
            other, one = self.alike(other, one)
            return one, other
        other = self.tensor(other, one.kind)
        if one.kind == other.kind:
            return one, other
        order = [TensorProto.BOOL, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, *FLOATS]
        kind = max(one.kind, other.kind, key=order.index)
        # A single number does not widen what has axes, unless it is of another sort.
        for alone, wide in ((one, other), (other, one)):
            if self.alone(alone) and not self.alone(wide) and (alone.kind in FLOATS) <= (wide.kind in FLOATS):
                kind = wide.kind
        return self.cast(one, kind), self.cast(other, kind)

    def alone(self, value):
        return value.name in self.weights and not self.weights[value.name].dims

    def cast(self, value, kind):
        return value if value.kind == kind else self.node("Cast", [value], kind, to=kind)

    def row(self, values):
        """Integers, known or not, as one tensor."""
        if all(isinstance(value, int) for value in values):
            return self.ints(list(values))
        one = self.ints([1])
        parts = [self.node("Reshape", [value, one]) if isinstance(value, Tensor) else self.ints([value]) for value in values]
        return self.node("Concat", parts, TensorProto.INT64, axis=0)

    # Operators.

    def call(self, name, given, named):
        # In place: the tensor that was given is what is made from here on.
        inside = name.endswith("_") and name not in SAME and not name.startswith("_")
        plain = name.removesuffix("_") if inside else name
        made = self.plain(plain, given, named)
        if inside and isinstance(given[0], Tensor):
            given[0].name, given[0].kind = made.name, made.kind
            return given[0]
        return made

    def plain(self, name, given, named):
        if name in SAME:
            return given[0]
        if name in UNARY and len(given) == 1:
            return self.node(UNARY[name], given)
        if name in BINARY and len(given) == 2:
            return self.node(BINARY[name], list(self.alike(*given)))
        if name in COMPARED:
            if not any(isinstance(one, Tensor) for one in given):
                return getattr(operator, name)(*given)
            return self.node(COMPARED[name], list(self.alike(*given)), TensorProto.BOOL)
        form = getattr(self, f"on_{name.strip('_')}", None)
        if form is None:
            raise refused(f"the operator {name}")
        return form(*given, **named)

    def on_ne(self, one, other):
        if not isinstance(one, Tensor) and not isinstance(other, Tensor):
            return one != other
        return self.node("Not", [self.node("Equal", list(self.alike(one, other)), TensorProto.BOOL)])

    def on_isnot(self, one, other):
        return one is not other

    def on_is(self, one, other):
        return one is other

    def on_not(self, one):
        return not one

    def sum_of(self, kind, one, other, alpha):
        if alpha != 1:
            other = self.node("Mul", list(self.alike(other, alpha)))
        return self.node(kind, list(self.alike(one, other)))

    def on_add(self, one, other, alpha=1):
        return self.sum_of("Add", one, other, alpha)

    def on_sub(self, one, other, alpha=1):
        return self.sum_of("Sub", one, other, alpha)

    def on_rsub(self, one, other, alpha=1):
        return self.sum_of("Sub", self.tensor(other, one.kind), one, alpha)

    def on_div(self, one, other, rounding_mode=None):
        one, other = self.alike(one, other)
        if rounding_mode is None and one.kind not in FLOATS:
            one, other = self.cast(one, TensorProto.FLOAT), self.cast(other, TensorProto.FLOAT)
        made = self.node("Div", [one, other])
        if rounding_mode == "floor":
            return self.node("Floor", [made]) if one.kind in FLOATS else made
        if rounding_mode is not None and one.kind in FLOATS:
            raise refused(f"division rounded by {rounding_mode}")
        return made

    def on_floor_divide(self, one, other):
        return self.on_div(one, other, "floor")

    def on_rsqrt(self, x):
        return self.node("Reciprocal", [self.node("Sqrt", [x])])

    def on_logical_and(self, one, other):
        return self.node("And", [one, other])

    def on_logical_or(self, one, other):
        return self.node("Or", [one, other])

    def on_where(self, test, one, other):
        one, other = self.alike(one, other)
        return self.node("Where", [test, one, other], one.kind)

    def on_masked_fill(self, x, mask, value):
        return self.node("Where", [mask, self.tensor(value, x.kind), x], x.kind)

    def on_to(self, x, *how, dtype=None, **_):
        found = [one for one in (*how, dtype) if isinstance(one, int) and not isinstance(one, bool)]
        if how and isinstance(how[0], Tensor):
            return self.cast(x, how[0].kind)
        if not found or found[0] not in TYPES:
            return x
        return self.cast(x, TYPES[found[0]])

    def on_type_as(self, x, other):
        return self.cast(x, other.kind)

    def on_clamp(self, x, low=None, high=None, min=None, max=None):
        low, high = (min if low is None else low), (max if high is None else high)
        limit = lambda value: None if value is None else self.tensor(float(value) if x.kind in FLOATS else value, x.kind)
        return self.node("Clip", [x, limit(low), limit(high)])

    def on_hardtanh(self, x, low=-1.0, high=1.0, inplace=False):
        return self.on_clamp(x, low, high)

    def on_relu6(self, x, inplace=False):
        return self.on_clamp(x, 0.0, 6.0)

    def on_hardsigmoid(self, x, inplace=False):
        return self.node("HardSigmoid", [x], alpha=1.0 / 6.0, beta=0.5)

    def on_silu(self, x, inplace=False):
        return self.node("Mul", [x, self.node("Sigmoid", [x])])

    def on_gelu(self, x, approximate="none"):
        times = lambda one, other: self.node("Mul", [one, self.tensor(other, x.kind)])
        plus = lambda one, other: self.node("Add", [one, self.tensor(other, x.kind)])
        if approximate == "tanh":
            cube = self.node("Mul", [self.node("Mul", [x, x]), x])
            inner = self.node("Tanh", [times(self.node("Add", [x, times(cube, 0.044715)]), float(np.sqrt(2.0 / np.pi)))])
        else:
            inner = self.node("Erf", [times(x, float(np.sqrt(0.5)))])
        return self.node("Mul", [times(x, 0.5), plus(inner, 1.0)])

    def on_leaky_relu(self, x, slope=0.01, inplace=False):
        return self.node("LeakyRelu", [x], alpha=float(slope))

    def on_elu(self, x, alpha=1.0, scale=1, input_scale=1, inplace=False):
        if scale != 1 or input_scale != 1:
            raise refused("a scaled elu")
        return self.node("Elu", [x], alpha=float(alpha))

    def on_softmax(self, x, axis, dtype=None, *_):
        return self.node("Softmax", [x], axis=axis)

    def on_log_softmax(self, x, axis, dtype=None, *_):
        return self.node("LogSoftmax", [x], axis=axis)

    def on_dropout(self, x, share=0.5, train=False):
        if train:
            raise refused("dropout while it learns (call eval() before it is saved)")
        return x

    on_feature_dropout = on_dropout

    def on_convolution(self, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *_):
        if transposed:
            raise refused("a transposed convolution")
        return self.conv(len(stride), x, weight, bias, stride, padding, dilation, groups)

    def conv(self, count, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        wide = lambda value: [value] * count if isinstance(value, int) else list(value) * (count if len(value) == 1 else 1)
        if isinstance(padding, str):
            raise refused(f"a convolution with padding {padding!r}")
        given = [x, weight] if bias is None else [x, weight, bias]
        return self.node("Conv", given, strides=wide(stride), pads=wide(padding) * 2, dilations=wide(dilation), group=groups)

    def on_conv1d(self, *given, **named):
        return self.conv(1, *given, **named)

    def on_conv2d(self, *given, **named):
        return self.conv(2, *given, **named)

    def on_max_pool2d(self, x, size, stride=(), padding=(0, 0), dilation=(1, 1), ceil_mode=False):
        about = {"kernel_shape": both(size), "strides": both(stride or size), "pads": both(padding) * 2, "dilations": both(dilation)}
        return self.node("MaxPool", [x], ceil_mode=int(ceil_mode), **about)

    def on_avg_pool2d(self, x, size, stride=(), padding=(0, 0), ceil_mode=False, counted=True, divisor=None):
        if divisor is not None:
            raise refused("avg_pool2d with a divisor of its own")
        about = {"kernel_shape": both(size), "strides": both(stride or size), "pads": both(padding) * 2}
        return self.node("AveragePool", [x], ceil_mode=int(ceil_mode), count_include_pad=int(counted), **about)

    def on_adaptive_avg_pool2d(self, x, size):
        if list(size) != [1, 1]:
            raise refused("adaptive_avg_pool2d to anything but one number")
        return self.node("GlobalAveragePool", [x])

    def on_batch_norm(self, x, weight, bias, mean, variance, training, momentum, eps, *_):
        if training:
            raise refused("batch_norm while it learns (call eval() before it is saved)")
        count = self.shape(mean)[0]
        weight = self.constant(np.ones(count), x.kind) if weight is None else weight
        bias = self.constant(np.zeros(count), x.kind) if bias is None else bias
        return self.node("BatchNormalization", [x, weight, bias, mean, variance], epsilon=float(eps))

    def on_layer_norm(self, x, shape, weight=None, bias=None, eps=1e-5, *_):
        weight = self.constant(np.ones(shape), x.kind) if weight is None else weight
        return self.node("LayerNormalization", [x, weight] + ([] if bias is None else [bias]), axis=-len(shape), epsilon=float(eps))

    def turned(self, weight):
        """A weight's other way round is a weight."""
        if weight.name in self.weights:
            return self.weight(np.ascontiguousarray(numpy_helper.to_array(self.weights[weight.name]).T))
        return self.node("Transpose", [weight], perm=[1, 0])

    def on_linear(self, x, weight, bias=None):
        if bias is not None and self.rank(x) == 2:
            return self.node("Gemm", [x, weight, bias], transB=1)
        product = self.node("MatMul", [x, self.turned(weight)])
        return product if bias is None else self.node("Add", [product, bias])

    def on_addmm(self, bias, one, other, beta=1, alpha=1):
        return self.node("Gemm", [one, other, bias], one.kind, alpha=float(alpha), beta=float(beta))

    def on_t(self, x):
        return self.turned(x)

    def on_scaled_dot_product_attention(self, query, key, value, mask=None, share=0.0, causal=False, scale=None, *_, **__):
        width = self.shape(query)[-1]
        if causal or share or (scale is None and width is None) or (mask is not None and mask.kind == TensorProto.BOOL):
            raise refused("attention in this form")
        scale = float(1.0 / np.sqrt(width)) if scale is None else scale
        scores = self.node("MatMul", [self.node("Mul", [query, self.tensor(scale, query.kind)]), self.on_transpose(key, -2, -1)])
        scores = scores if mask is None else self.node("Add", [scores, mask])
        return self.node("MatMul", [self.node("Softmax", [scores], axis=-1), value])

    # Shapes.

    def on_dim(self, x):
        return self.rank(x)

    def on_len(self, row):
        if isinstance(row, Tensor):
            return self.on_size(row, 0)
        return len(row)

    def on_size(self, x, axis=None):
        if axis is None:
            return [self.on_size(x, one) for one in range(self.rank(x))]
        known = self.shape(x)[axis]
        # The first is the batch, whatever it is now.
        if known is not None and axis % self.rank(x) != 0:
            return known
        return self.node("Gather", [self.node("Shape", [x], TensorProto.INT64), self.ints(axis)], axis=0)

    def on_tensor(self, value, dtype=None, **_):
        kind = TYPES.get(dtype, TensorProto.FLOAT if isinstance(value, float) else TensorProto.INT64)
        made = self.row(value) if isinstance(value, list) and kind == TensorProto.INT64 else self.tensor(value, kind)
        return self.cast(made, kind)

    def on_reshape(self, x, shape):
        return self.node("Reshape", [x, self.row(shape)])

    on_view = on_unsafe_view = on_reshape

    def on_flatten(self, x, first=0, last=-1):
        rank = self.rank(x)
        first, last = first % rank, last % rank
        if (first, last) == (1, rank - 1):
            return self.node("Flatten", [x], axis=1)
        sizes = [self.on_size(x, axis) for axis in range(rank)]
        return self.on_reshape(x, [*sizes[:first], -1, *sizes[last + 1 :]])

    def on_permute(self, x, order):
        rank = len(order)
        return self.node("Transpose", [x], perm=[axis % rank for axis in order])

    def on_transpose(self, x, one, other):
        order = list(range(self.rank(x)))
        order[one], order[other] = order[other], order[one]
        return self.node("Transpose", [x], perm=order)

    def on_unsqueeze(self, x, axis):
        return self.node("Unsqueeze", [x, self.ints([axis])])

    def on_squeeze(self, x, axis=None):
        if axis is None:
            raise refused("squeeze without an axis")
        return self.node("Squeeze", [x, self.ints([axis])])

    def on_cat(self, parts, axis=0):
        return self.node("Concat", list(parts), axis=axis)

    def on_stack(self, parts, axis=0):
        return self.on_cat([self.on_unsqueeze(part, axis) for part in parts], axis)

    def on_slice(self, x, axis=0, start=None, end=None, step=1):
        if isinstance(x, list):
            return x[axis:start:end] if end is not None else x[axis:start]
        limit = lambda value, other: self.row([other if value is None else value])
        return self.node("Slice", [x, limit(start, 0), limit(end, END), self.ints([axis]), self.ints([step])])

    def on_select(self, x, axis, at):
        return self.node("Gather", [x, self.tensor(at, TensorProto.INT64)], axis=axis)

    def on_getitem(self, row, at):
        return row[at]

    def on_chunk(self, x, count, axis=0):
        size = self.shape(x)[axis]
        if size is None or size % count:
            raise refused("chunk of an axis that it does not divide")
        each = size // count
        return [self.on_slice(x, axis, number * each, (number + 1) * each) for number in range(count)]

    def on_expand(self, x, shape, implicit=False):
        return self.node("Expand", [x, self.row([1 if size == -1 else size for size in shape])], x.kind)

    def on_ones(self, shape, dtype=None, **_):
        return self.on_full(shape, 1, dtype)

    def on_zeros(self, shape, dtype=None, **_):
        return self.on_full(shape, 0, dtype)

    def on_full(self, shape, value, dtype=None, **_):
        kind = TYPES.get(dtype, TensorProto.FLOAT)
        one = numpy_helper.from_array(np.array([value], helper.tensor_dtype_to_np_dtype(kind)))
        return self.node("ConstantOfShape", [self.row(shape)], kind, value=one)

    def on_arange(self, *given, **named):
        numbers = [one for one in given if isinstance(one, Tensor) or (isinstance(one, int) and not isinstance(one, bool))]
        # What follows the limit is a type, a layout, a device.
        dtype = next((one for one in numbers[1:] if isinstance(one, int) and one in TYPES), 4)
        if TYPES[dtype] != TensorProto.INT64:
            raise refused("arange of anything but integers")
        return self.node("Range", [self.ints(0), self.tensor(numbers[0], TensorProto.INT64), self.ints(1)], TensorProto.INT64)

    def on_embedding(self, weight, index, *_):
        return self.node("Gather", [weight, index], axis=0)

    def on_index(self, x, at):
        if len(at) != 1 or at[0] is None or at[0].kind == TensorProto.BOOL:
            raise refused("indexing by several tensors")
        return self.node("Gather", [x, at[0]], axis=0)

    def on_index_select(self, x, axis, at):
        return self.node("Gather", [x, at], axis=axis)

    def on_constant_pad_nd(self, x, pads, value=0):
        sides = [(pads[at], pads[at + 1]) for at in range(0, len(pads), 2)][::-1]
        sides = [(0, 0)] * (self.rank(x) - len(sides)) + sides
        told = [begin for begin, _ in sides] + [end for _, end in sides]
        return self.node("Pad", [x, self.ints(told), self.tensor(value, x.kind)])

    def on_pad(self, x, pads, mode="constant", value=None):
        if mode != "constant":
            raise refused(f"padding by {mode}")
        return self.on_constant_pad_nd(x, pads, 0 if value is None else value)

    # Over axes.

    def reduced(self, kind, x, axes, keep):
        rows = None if axes is None else [axes] if isinstance(axes, int) else list(axes)
        if kind == "ReduceSum":
            return self.node(kind, [x] if rows is None else [x, self.ints(rows)], keepdims=int(keep))
        about = {} if rows is None else {"axes": rows}
        return self.node(kind, [x], keepdims=int(keep), **about)

    def on_mean(self, x, axes=None, keepdim=False, dtype=None):
        return self.reduced("ReduceMean", x, axes, keepdim)

    def on_sum(self, x, axes=None, keepdim=False, dtype=None):
        if x.kind == TensorProto.BOOL:
            x = self.cast(x, TensorProto.INT64)
        return self.reduced("ReduceSum", x, axes, keepdim)

    def on_amax(self, x, axes=(), keepdim=False):
        return self.reduced("ReduceMax", x, list(axes) or None, keepdim)

    def on_amin(self, x, axes=(), keepdim=False):
        return self.reduced("ReduceMin", x, list(axes) or None, keepdim)

    def on_norm(self, x, p=2, axes=None, keepdim=False, dtype=None):
        if p != 2:
            raise refused(f"a norm of order {p}")
        return self.node("ReduceL2", [x], keepdims=int(keepdim), **({} if axes is None else {"axes": list(axes)}))

    def on_linalg_vector_norm(self, x, p=2, axes=None, keepdim=False, dtype=None):
        return self.on_norm(x, p, axes, keepdim)
