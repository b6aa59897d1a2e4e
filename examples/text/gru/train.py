"""Trains the small recurrent model of the task `ratings`, with numpy alone: model.onnx and tokenizer.json beside this file.

    pip install -r ../tools.txt
    pip download --no-deps --no-binary :all: --require-hashes --dest PACKAGES -r ../data.txt
    OMP_NUM_THREADS=1 python train.py PACKAGES [OUT]

It learns from rated sentences of all four sources except those that `ratings` is tested with (make.py: `sets`). A sentence becomes
pieces of words, each a short vector; a GRU reads them forwards and another one backwards; the mean of what they say at
every piece decides.

Sentences of different lengths share a batch. What a shorter one is filled up with must not change its answer: the model counts
the mask and tells the GRU each sentence's own length (`sequence_lens`), so the backward one begins at its last piece, and
the mean is of its own pieces only. That is compared at the end.
"""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from make import read_rated, sets  # noqa: E402

VOCABULARY, EACH, WIDTH, MOST = 5_000, 32, 48, 128
EPOCHS, BATCH, RATE, DROPPED, HELD_OUT = 9, 64, 2e-3, 0.4, 800
OPSET = 17


def tokenizer(texts):
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, min_frequency=3, special_tokens=["[PAD]", "[UNK]", "[BEGIN]"], show_progress=False
    )
    made.train_from_iterator(sorted(texts), trainer)
    # So that no text is without a piece.
    made.post_processor = processors.TemplateProcessing(single="[BEGIN] $A", special_tokens=[("[BEGIN]", 2)])
    return made


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def read(x, mask, p, side):
    """One direction. x: [time, batch, each]. Gives what it says at every piece, and what the way back needs."""
    steps, count, _ = x.shape
    h, said, kept = np.zeros((count, WIDTH), np.float32), [], []
    inputs = x @ p[f"w{side}"] + p[f"b{side}"]
    for t in range(steps):
        held = h @ p[f"r{side}"] + p[f"c{side}"]
        z = sigmoid(inputs[t, :, :WIDTH] + held[:, :WIDTH])
        r = sigmoid(inputs[t, :, WIDTH : 2 * WIDTH] + held[:, WIDTH : 2 * WIDTH])
        n = np.tanh(inputs[t, :, 2 * WIDTH :] + r * held[:, 2 * WIDTH :])
        new = (1 - z) * n + z * h
        kept.append((h, z, r, n, held[:, 2 * WIDTH :]))
        h = np.where(mask[t], new, h)
        said.append(new * mask[t])
    return np.array(said), kept


def back(grad, x, mask, kept, p, side, grads):
    """The way back through one direction; gives the gradient of its inputs."""
    steps = len(x)
    dh = np.zeros_like(kept[0][0])
    parts = np.zeros((steps, x.shape[1], 3 * WIDTH), np.float32)
    held = np.zeros_like(parts)
    for t in range(steps - 1, -1, -1):
        h, z, r, n, inner = kept[t]
        new = (grad[t] + dh) * mask[t]
        dn = new * (1 - z) * (1 - n * n)
        dz = new * (h - n) * z * (1 - z)
        dr = dn * inner * r * (1 - r)
        parts[t] = np.hstack([dz, dr, dn])
        held[t] = np.hstack([dz, dr, dn * r])
        dh = np.where(mask[t], new * z, dh) + held[t] @ p[f"r{side}"].T
    before = np.array([k[0] for k in kept]).reshape(-1, WIDTH)
    flat, flat_held = parts.reshape(-1, 3 * WIDTH), held.reshape(-1, 3 * WIDTH)
    grads[f"w{side}"], grads[f"b{side}"] = x.reshape(-1, x.shape[2]).T @ flat, flat.sum(0)
    grads[f"r{side}"], grads[f"c{side}"] = before.T @ flat_held, flat_held.sum(0)
    return parts @ p[f"w{side}"].T


def turned(x, lengths):
    """Every sentence of a batch from its end to its beginning; its own inverse."""
    steps = np.arange(len(x))[:, None]
    order = np.where(steps < lengths, lengths - 1 - steps, steps)
    return np.take_along_axis(x, order[:, :, None], 0)


def step(p, ids, lengths, wanted, rng):
    """Loss and gradients, or without anything wanted the logits."""
    learning = wanted is not None
    mask = (np.arange(ids.shape[0])[:, None] < lengths)[:, :, None]
    x = p["words"][ids]
    drop = lambda shape: (rng.random(shape, np.float32) >= DROPPED).astype(np.float32) / (1 - DROPPED)
    seen_words = drop((1, *x.shape[1:])) if learning else 1
    x = x * seen_words
    there, kept_there = read(x, mask, p, "f")
    here, kept_here = read(turned(x, lengths), mask, p, "b")
    mean = np.hstack([there.sum(0), here.sum(0)]) / lengths[:, None]
    seen = drop(mean.shape) if learning else 1
    logits = (mean * seen) @ p["head"] + p["bias"]
    if not learning:
        return logits
    chance = np.exp(logits - logits.max(1, keepdims=True))
    chance /= chance.sum(1, keepdims=True)
    loss = -np.log(chance[np.arange(len(wanted)), wanted] + 1e-9).mean()
    chance[np.arange(len(wanted)), wanted] -= 1
    chance /= len(wanted)
    grads = {"head": (mean * seen).T @ chance, "bias": chance.sum(0)}
    dmean = (chance @ p["head"].T) * seen / lengths[:, None]
    each = np.broadcast_to(dmean, (len(ids), *dmean.shape))
    dx = back(each[:, :, :WIDTH], x, mask, kept_there, p, "f", grads)
    dx = dx + turned(back(each[:, :, WIDTH:], turned(x, lengths), mask, kept_here, p, "b", grads), lengths)
    grads["words"] = np.zeros_like(p["words"])
    np.add.at(grads["words"], ids, dx * seen_words * mask)
    return loss, grads


def batches(encoded, order):
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        lengths = np.array([len(encoded[at]) for at in some])
        ids = np.zeros((lengths.max(), len(some)), np.int64)
        for row, at in enumerate(some):
            ids[: lengths[row], row] = encoded[at]
        yield some, ids, lengths


def right(p, encoded, wanted):
    order = sorted(range(len(encoded)), key=lambda at: len(encoded[at]))
    said = np.zeros(len(encoded), np.int64)
    for some, ids, lengths in batches(encoded, order):
        said[some] = step(p, ids, lengths, None, None).argmax(1)
    return (said == wanted).mean()


def train(encoded, wanted, count):
    rng = np.random.default_rng(7)
    normal = lambda *shape, scale: (rng.standard_normal(shape) * scale).astype(np.float32)
    p = {"words": normal(count, EACH, scale=0.1), "head": normal(2 * WIDTH, 2, scale=0.1), "bias": np.zeros(2, np.float32)}
    for side in "fb":
        p[f"w{side}"], p[f"r{side}"] = normal(EACH, 3 * WIDTH, scale=EACH**-0.5), normal(WIDTH, 3 * WIDTH, scale=WIDTH**-0.5)
        p[f"b{side}"], p[f"c{side}"] = np.zeros(3 * WIDTH, np.float32), np.zeros(3 * WIDTH, np.float32)
    first, second = ({k: np.zeros_like(v) for k, v in p.items()} for _ in range(2))
    learned, held = slice(HELD_OUT, None), slice(0, HELD_OUT)
    texts, labels, at = encoded[learned], wanted[learned], 0
    for epoch in range(EPOCHS):
        # Of like lengths, but in another order every time.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]) + rng.random() * 6)
        groups = list(batches(texts, order))
        rng.shuffle(groups)
        losses = []
        for some, ids, lengths in groups:
            loss, grads = step(p, ids, lengths, labels[some], rng)
            losses.append(loss)
            at += 1
            rate = RATE * min(1, at / 100) * (1 - 0.9 * at / (EPOCHS * len(groups)))
            for name, grad in grads.items():
                grad = np.clip(grad, -1, 1)
                first[name] += 0.1 * (grad - first[name])
                second[name] += 0.001 * (grad * grad - second[name])
                push = first[name] / (1 - 0.9**at) / (np.sqrt(second[name] / (1 - 0.999**at)) + 1e-8)
                p[name] -= rate * (push + (0.01 * p[name] if name != "bias" else 0))
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, held out {right(p, encoded[held], wanted[held]):.3f}", flush=True)
    return p


def export(p, path):
    nodes, constants = [], []

    def constant(value):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), f"c{len(constants)}"))
        return constants[-1].name

    def op(kind, *inputs, out=None, **attributes):
        out = out or [f"t{len(nodes)}"]
        nodes.append(helper.make_node(kind, list(inputs), out, **attributes))
        return out[0]

    ints = lambda *values: constant(np.array(values, np.int64))
    both = lambda name: np.array([p[f"{name}f"].T, p[f"{name}b"].T])
    bias = np.array([np.hstack([p[f"b{side}"], p[f"c{side}"]]) for side in "fb"])
    # Half the size; made whole once, when the model is loaded.
    words = op("Cast", constant(p["words"].astype(np.float16)), to=TensorProto.FLOAT)
    x = op("Transpose", op("Gather", words, "input_ids"), perm=[1, 0, 2])
    lengths = op("ReduceSum", "attention_mask", ints(1), keepdims=0)
    own = op("Cast", lengths, to=TensorProto.INT32)
    said = op(
        "GRU", x, constant(both("w")), constant(both("r")), constant(bias), own,
        hidden_size=WIDTH, direction="bidirectional", linear_before_reset=1,
    )
    # [time, direction, batch, width]; beyond a sentence's own length there are zeros.
    total = op("Reshape", op("Transpose", op("ReduceSum", said, ints(0), keepdims=0), perm=[1, 0, 2]), ints(0, 2 * WIDTH))
    mean = op("Div", total, op("Unsqueeze", op("Cast", lengths, to=TensorProto.FLOAT), ints(1)))
    op("Gemm", mean, constant(p["head"]), constant(p["bias"]), out=["logits"])
    token = lambda name: helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"])
    ends = [token("input_ids"), token("attention_mask")], [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])]
    graph = helper.make_graph(nodes, "gru", *ends, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(made)
    path.write_bytes(made.SerializeToString(deterministic=True))


def compare(path, p, encoded):
    """The file against numpy, alone and in batches with longer ones."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def ask(texts):
        ids, mask = (np.zeros((len(texts), max(map(len, texts))), np.int64) for _ in range(2))
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    together = np.vstack([ask(encoded[at : at + 32]) for at in range(0, 320, 32)])
    alone = np.vstack([ask([text]) for text in encoded[:320]])
    own = np.vstack([step(p, np.array(text)[:, None], np.array([len(text)]), None, None) for text in encoded[:320]])
    padding, numpy = np.abs(together - alone).max(), np.abs(alone - own).max()
    print(f"a batch differs from one alone by at most {padding:.1e}, from numpy by {numpy:.1e}")
    assert padding < 1e-5 and numpy < 2e-2, "what was exported is not what was trained"


def main():
    packages, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) if sys.argv[2:] else HERE
    _, tested, others, _ = sets(read_rated(packages))
    order = np.random.default_rng(3).permutation(len(others))
    others = [others[at] for at in order]
    pieces = tokenizer([text for text, _ in others])
    pieces.save(str(out / "tokenizer.json"), pretty=False)
    pieces.enable_truncation(MOST)
    encode = lambda pairs: [encoding.ids for encoding in pieces.encode_batch([text for text, _ in pairs])]
    encoded, wanted = encode(others), np.array([int(good) for _, good in others])
    print(f"{len(others)} sentences, {pieces.get_vocab_size()} pieces, {np.mean([len(text) for text in encoded]):.1f} in a sentence")
    p = train(encoded, wanted, pieces.get_vocab_size())
    export(p, out / "model.onnx")
    compare(out / "model.onnx", p, encoded)
    tests = encode(tested), np.array([int(good) for _, good in tested])
    print(json.dumps({"tested": len(tested), "right": round(float(right(p, *tests)), 4), "bytes": (out / "model.onnx").stat().st_size}))


if __name__ == "__main__":
    main()
