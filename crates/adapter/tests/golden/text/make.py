"""Makes the files beside it: a small tokenizer, a small model, and what Python makes of texts with them.

    pip install tokenizers onnx onnxruntime numpy && python make.py

`tokenizer.json` is a WordPiece tokenizer as BERT's, trained on the sentences below. `tiny.onnx` gives each token a vector that
depends on the whole text (so that padding that is not masked shows) and, as a second output, two numbers for each text.
`cases.json` holds, for each text: the tokens by the `tokenizers` package, and the vectors that numpy pools out of what
ONNX Runtime computes for this text alone.
"""

import json
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
DIMENSION = 8

CORPUS = [
    "A ship sailed out of the harbour at dawn, and nobody waved.",
    "The harbour master counted seven ships before noon.",
    "Dawn comes late in winter; the lamps burn until nine.",
    "Nobody had counted the lamps along the shore.",
    "She wrote a letter about the winter and never sent it.",
    "Unsent letters filled the drawer of the master's desk.",
]
TEXTS = [
    "A ship sailed out of the harbour.",
    "winter",
    "  Lamps,  LAMPS!\tlamps?\n",
    "The naïve café: déjà vu",
    "船 and harbour",
    "unseaworthiness",
    "[SEP] is not special here",
    "The harbour master counted seven ships before noon, and the lamps burn until nine; nobody had sent it.",
]


def tokenizer():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=160, special_tokens=special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", made.token_to_id("[CLS]")), ("[SEP]", made.token_to_id("[SEP]"))],
    )
    # What a file says of cutting and filling up is not to count.
    made.enable_truncation(5)
    made.enable_padding(length=12)
    made.save(str(HERE / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def model(words):
    random = np.random.default_rng(7)
    table = random.normal(size=(words, DIMENSION)).astype(np.float32)
    head = random.normal(size=(DIMENSION, 2)).astype(np.float32)
    constant = lambda name, value: numpy_helper.from_array(np.asarray(value), name)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["words", "wide"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "middle"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "tenth"], ["whole"]),
        helper.make_node("Add", ["words", "whole"], ["last_hidden_state"]),
        helper.make_node("Squeeze", ["whole", "middle"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["logits"]),
    ]
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "tiny",
        [tensor(name, TensorProto.INT64, ["n", "t"]) for name in ("input_ids", "attention_mask")],
        [
            tensor("last_hidden_state", TensorProto.FLOAT, ["n", "t", DIMENSION]),
            tensor("logits", TensorProto.FLOAT, ["n", 2]),
        ],
        [
            constant("table", table),
            constant("head", head),
            constant("last", np.array([2], np.int64)),
            constant("middle", np.array([1], np.int64)),
            constant("tenth", np.float32(0.1)),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(made)
    onnx.save(made, HERE / "tiny.onnx")


def main():
    tokens = tokenizer()
    model(tokens.get_vocab_size())
    session = onnxruntime.InferenceSession(str(HERE / "tiny.onnx"), providers=["CPUExecutionProvider"])
    cases = []
    for text in TEXTS:
        ids = np.array([tokens.encode(text).ids], np.int64)
        hidden, logits = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        hidden = hidden[0].astype(np.float64)
        mean = hidden.mean(0)
        unit = mean / np.linalg.norm(mean)
        shown = lambda vector: [round(float(value), 6) for value in vector]
        cases.append(
            {
                "text": text,
                "ids": ids[0].tolist(),
                "mean": shown(mean),
                "mean_unit": shown(unit),
                "cls": shown(hidden[0]),
                "max": shown(hidden.max(0)),
                "logits": shown(logits[0]),
            }
        )
    (HERE / "cases.json").write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
