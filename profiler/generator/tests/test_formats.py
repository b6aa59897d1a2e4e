"""ONNX and TorchScript, each made of the other. Whether libtorch takes what is written is tried where it is installed
(`cargo xtask test --only torch`); here what is written is read again, and what PyTorch wrote itself is read."""

import pathlib
import pickle
import tempfile
import unittest
import zipfile

import numpy as np
import onnx
from onnx import TensorProto, helper

import made
from modelless_generator import archive, from_script, model as models, to_script
from modelless_generator.data import Tensors
from modelless_generator.errors import BadInput, Refused
from modelless_generator.recipes import run

ROOT = pathlib.Path(__file__).parents[3]
FASHION = ROOT / "examples/fashion/models"
PICTURE = [{"name": "input", "dtype": "FP32", "shape": [1, 28, 28]}]
TOKENS = [{"name": name, "dtype": "INT64", "shape": ["t"]} for name in ("input_ids", "attention_mask")]
ROW = [{"name": "x", "dtype": "FP32", "shape": [4]}]


def ran(model, feed):
    """The answers, by name."""
    onnx.checker.check_model(model)
    session = models.session(model)
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feed)))


def script(body, tensors=None, takes="x: Tensor", before=""):
    """A file with this `forward`."""
    held = "".join(f"  {name} : Tensor\n" for name in tensors or {})
    code = f"{before}class Net(Module):\n{held}  training : bool\n  def forward(self: __torch__.Net,\n    {takes}) -> Tensor:\n"
    return archive.written(code + "".join(f"    {line}\n" for line in body.splitlines()), tensors or {})


def followed(body, tensors=None, inputs=ROW, **more):
    return from_script.converted(script(body, tensors, **more), inputs, ["y"])


class Onnx(unittest.TestCase):
    """Of TorchScript."""

    def test_what_pytorch_saved_gives_the_answers_of_the_same_weights_in_onnx(self):
        values = np.random.default_rng(0).standard_normal((5, 1, 28, 28)).astype(np.float32)
        for name in ("cnn_s", "cnn_m"):
            own = from_script.converted((FASHION / f"{name}.pt").read_bytes(), PICTURE, ["logits"])
            known = onnx.load(FASHION / f"{name}.onnx")
            answers, wanted = ran(own, {"input": values})["logits"], ran(known, {"input": values})["logits"]
            self.assertLess(np.abs(answers - wanted).max(), 1e-4, name)

    def test_a_model_of_texts_keeps_its_names_and_takes_any_length(self):
        folder = ROOT / "crates/adapter/tests/golden/text"
        own = from_script.converted((folder / "tiny.pt").read_bytes(), TOKENS, [])
        for length in (3, 17):
            ids = np.arange(2 * length).reshape(2, length) % 20
            feed = {"input_ids": ids, "attention_mask": np.ones((2, length), np.int64)}
            answers, wanted = ran(own, feed), ran(onnx.load(folder / "tiny.onnx"), feed)
            self.assertLess(np.abs(answers["last_hidden_state"] - wanted["last_hidden_state"]).max(), 1e-5)

    def test_conditions_functions_and_what_is_changed_in_place_are_followed(self):
        before = "def halved(x: Tensor, by: float=2.) -> Tensor:\n  return torch.div(x, by)\n"
        body = (
            "if self.training:\n  z = torch.neg(x)\nelse:\n  z = torch.mul(x, self.w)\n"
            "_0 = torch.add_(z, 1)\n"
            "if torch.eq(torch.dim(z), 2):\n  y = __torch__.halved(z, )\nelse:\n  ops.prim.RaiseException(\"\")\n  y = z\n"
            "return torch.relu(y)"
        )
        weight = np.array([1, -1, 2, 0.5], np.float32)
        own = followed(body, {"w": weight}, before=before)
        values = np.array([[1, 2, 3, -4]], np.float32)
        self.assertTrue(np.allclose(ran(own, {"x": values})["y"], np.maximum((values * weight + 1) / 2, 0)))

    def test_shapes_that_are_computed_stay_open(self):
        body = "n = ops.prim.NumToTensor(torch.size(x, 0))\ny = torch.view(x, [int(n), 2, -1])\nreturn torch.transpose(y, 1, 2)"
        own = followed(body)
        for count in (1, 3):
            values = np.arange(4 * count, dtype=np.float32).reshape(count, 4)
            wanted = values.reshape(count, 2, 2).transpose(0, 2, 1)
            self.assertTrue(np.array_equal(ran(own, {"x": values})["y"], wanted))

    def test_a_single_number_of_another_width_does_not_widen(self):
        own = followed("return torch.sub(x, self.w)", {"w": np.array(0.5, np.float64)})
        self.assertEqual(ran(own, {"x": np.ones((1, 4), np.float32)})["y"].dtype, np.float32)

    def test_what_is_not_known_is_refused_by_its_name(self):
        for body, words in (
            ("return torch.fft_rfft(x)", "the operator fft_rfft"),
            ("if torch.gt(torch.sum(x), 0):\n  y = x\nelse:\n  y = torch.neg(x)\nreturn y", "a condition on what a tensor holds"),
            ("while True:\n  x = torch.neg(x)\nreturn x", "a while statement"),
            ("return torch.dropout(x, 0.5, True)", "eval()"),
            ("return self.forward(x, )", "calls itself"),
            ("return 3", "no tensor"),
            ("return torch.select(x)", "at"),
        ):
            with self.assertRaises(BadInput, msg=body) as caught:
                followed(body)
            self.assertEqual(caught.exception.name, "unknown-operator")
            self.assertIn(words, str(caught.exception))


class Files(unittest.TestCase):
    def said(self, content):
        with self.assertRaises(BadInput) as caught:
            archive.Archive(content)
        self.assertEqual(caught.exception.name, "corrupt-model")
        return str(caught.exception)

    def test_what_is_damaged_is_told(self):
        whole = (FASHION / "cnn_s.pt").read_bytes()
        for part in (b"", b"no archive", whole[: len(whole) // 2], whole[100:]):
            self.assertIn("damaged", self.said(part))

    def test_nothing_that_a_pickle_names_is_called(self):
        class Evil:
            def __reduce__(self):
                return print, ("called",)

        plain = script("return x")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "evil.pt")
            with zipfile.ZipFile(path, "w") as out:
                out.writestr("m/data.pkl", pickle.dumps(Evil(), protocol=2))
                out.writestr("m/code/__torch__.py", archive.Archive(plain).code["__torch__"])
            self.assertIn("names builtins.print", self.said(path.read_bytes()).replace("__builtin__", "builtins"))

    def test_a_tensor_reaches_no_numbers_but_its_own(self):
        numbers = np.arange(6, dtype=np.float32)
        self.assertTrue(np.array_equal(archive.tensor(numbers, 1, (2, 2), (2, 1)), [[1, 2], [3, 4]]))
        for offset, size, stride in ((0, (7,), (1,)), (5, (2,), (1,)), (-1, (1,), (1,)), (3, (2,), (-1,)), (0, (2, 2), (1,))):
            with self.assertRaises(BadInput):
                archive.tensor(numbers, offset, size, stride)


class TorchScript(unittest.TestCase):
    """Of ONNX."""

    def again(self, model, inputs, feed):
        """Through TorchScript and back."""
        own = from_script.converted(to_script.converted(model), inputs, [])
        answers, wanted = ran(own, feed), ran(model, feed)
        self.assertEqual(list(answers), list(wanted), "outputs keep their names")
        for name, value in wanted.items():
            self.assertLess(np.abs(answers[name] - value).max(), 1e-5, name)

    def test_models_of_the_demo_come_back_as_they_were(self):
        values = np.random.default_rng(0).standard_normal((3, 1, 28, 28)).astype(np.float32)
        for name in ("linear", "mlp_s", "mlp_l", "cnn_s", "cnn_m", "cnn_l"):
            with self.subTest(name):
                self.again(onnx.load(FASHION / f"{name}.onnx"), PICTURE, {"input": values})

    def test_attention_with_shapes_that_are_computed_comes_back(self):
        rng = np.random.default_rng(0)
        ints = lambda *values: np.array(values, np.int64)
        weights = {"e": made.weight(rng, 20, 8), "q": made.weight(rng, 8, 8), "k": made.weight(rng, 8, 8), "s": np.ones(8, np.float32)}
        weights |= {"zero": ints(0), "one": ints(1), "two": ints(2), "heads": ints(2), "each": ints(4), "rest": ints(-1), "ax": ints(1, 2)}
        node = helper.make_node
        nodes = [
            node("Gather", ["e", "input_ids"], ["x"]),
            node("LayerNormalization", ["x", "s"], ["n"], axis=-1),
            node("Shape", ["input_ids"], ["shape"]),
            node("Slice", ["shape", "zero", "two"], ["both"]),
            node("Concat", ["both", "heads", "each"], ["split"], axis=0),
            node("MatMul", ["n", "q"], ["qn"]),
            node("Reshape", ["qn", "split"], ["qs"]),
            node("Transpose", ["qs"], ["query"], perm=[0, 2, 1, 3]),
            node("MatMul", ["n", "k"], ["kn"]),
            node("Reshape", ["kn", "split"], ["ks"]),
            node("Transpose", ["ks"], ["key"], perm=[0, 2, 3, 1]),
            node("MatMul", ["query", "key"], ["raw"]),
            node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["mask", "ax"], ["wide"]),
            node("Mul", ["raw", "wide"], ["scores"]),
            node("Softmax", ["scores"], ["seen"], axis=-1),
            node("MatMul", ["seen", "query"], ["mixed"]),
            node("ReduceMean", ["mixed"], ["mean"], axes=[2], keepdims=0),
            node("Concat", ["zero", "rest"], ["flat"], axis=0),
            node("Reshape", ["mean", "flat"], ["y"]),
        ]
        constants = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
        takes = [helper.make_tensor_value_info(one["name"], TensorProto.INT64, ["N", "t"]) for one in TOKENS]
        gives = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])]
        graph = helper.make_graph(nodes, "attention", takes, gives, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        feed = {"input_ids": np.arange(10).reshape(2, 5), "attention_mask": np.ones((2, 5), np.int64)}
        self.again(model, TOKENS, feed)

    def test_an_operator_without_a_form_is_refused_by_its_name(self):
        path = ROOT / "examples/text/gru/model.onnx"
        with self.assertRaises(Refused) as caught:
            to_script.converted(onnx.load(path))
        self.assertIn("the operator GRU", str(caught.exception))

    def test_the_same_model_gives_the_same_file(self):
        model = made.perceptron()
        self.assertEqual(to_script.converted(model), to_script.converted(model))


class Recipes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)

    def made_of(self, parent, recipes, **more):
        said = []
        run(made.job(self.path, parent, (256,), recipes, **more), self.path, Tensors, said.append, lambda *_: None)
        return {one["name"]: one for one in said}

    def test_torchscript_becomes_onnx_and_all_that_is_made_of_that(self):
        content = to_script.converted(made.perceptron())
        inputs = [{"name": "x", "dtype": "FP32", "shape": [256]}]
        said = self.made_of(content, ["onnx", "int8-entropy", "torchscript"], script=True, inputs=inputs, outputs=[])
        self.assertEqual([one["outcome"] for one in said.values()], ["made", "made", "refused"])
        self.assertIn("already", said["torchscript"]["why"])

    def test_onnx_becomes_torchscript_that_is_found_again(self):
        said = self.made_of(made.perceptron(), ["torchscript", "onnx"])
        one = said["torchscript"]
        self.assertEqual((one["outcome"], one["precision"], one["file"][-3:]), ("made", "fp32", ".pt"))
        self.assertNotIn("check", one, "only what runs TorchScript can tell")
        self.assertEqual(said["onnx"]["outcome"], "refused")
        archive.Archive((self.path / "made" / one["file"]).read_bytes())
