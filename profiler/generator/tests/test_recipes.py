import pathlib
import tempfile
import unittest

import numpy as np
import onnx

import made
from modelless_generator import factor, model as models, quantise, rewrite
from modelless_generator.data import Tensors
from modelless_generator.errors import Refused
from modelless_generator.recipes import WHOLE, run


def quiet(*_):
    pass


class Recipes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)

    def made_of(self, parent, shape, recipes=WHOLE, **more):
        said = []
        run(made.job(self.path, parent, shape, recipes, **more), self.path, Tensors, said.append, quiet)
        return {one["name"]: one for one in said}

    def open(self, one):
        return models.session(onnx.load(self.path / "made" / one["file"]))

    def test_a_perceptron_becomes_all_that_suits_it(self):
        said = self.made_of(made.perceptron(), (256,))
        outcomes = {name: one["outcome"] for name, one in said.items()}
        self.assertEqual(outcomes.pop("optimised"), "refused", "there is nothing to fold in it")
        self.assertEqual(outcomes.pop("svd-strong"), "refused", "its rank is what it is: both cuts are one")
        self.assertEqual(set(outcomes.values()), {"made"}, said)
        parent = (self.path / "parent.onnx").stat().st_size
        for name in ("int8-dynamic", "int8-minmax", "int8-percentile", "int8-entropy"):
            self.assertLess(said[name]["bytes"], 0.5 * parent, name)
            self.assertEqual(said[name]["precision"], "int8")
        self.assertLess(said["svd-mild"]["parameters"], 0.3 * said["fp16"]["parameters"])
        self.assertLess(said["svd-int8"]["bytes"], 0.6 * said["svd-mild"]["bytes"])
        self.assertIn("half precision", said["fp16"]["how"]["useful_on"])
        for one in said.values():
            if one["outcome"] == "made":
                self.assertGreater(one["check"]["top1"], 0.9, one)
                answer = self.open(one).run(None, {"x": np.zeros((3, 256), np.float32)})[0]
                self.assertEqual(answer.shape, (3, 10), "any batch, as before")

    def test_convolutions_are_simplified_and_keep_their_answers(self):
        said = self.made_of(made.convolutions(), (1, 12, 12))
        self.assertEqual(said["optimised"]["outcome"], "made")
        kinds = [node.op_type for node in onnx.load(self.path / "made" / said["optimised"]["file"]).graph.node]
        self.assertNotIn("BatchNormalization", kinds)
        self.assertLess(said["optimised"]["check"]["largest_difference"], 1e-4)
        self.assertEqual(said["svd-mild"]["outcome"], "refused")
        self.assertIn("no linear layer", said["svd-mild"]["why"])
        used = {node.domain for node in onnx.load(self.path / "made" / said["optimised"]["file"]).graph.node}
        self.assertEqual(used, {""}, "operators beyond ONNX would bind it to one engine")

    def test_a_thin_model_is_put_into_eight_bits_also_where_it_was_cut_before(self):
        job = made.job(self.path, made.perceptron(), (256,), ["svd-mild"])
        for recipes in (["svd-mild"], ["svd-mild", "svd-int8"]):
            said = []
            run(job | {"bases": [job["bases"][0] | {"recipes": recipes}]}, self.path, Tensors, said.append, quiet)
        self.assertEqual([(one["outcome"], one.get("reused", False)) for one in said], [("made", True), ("made", False)])

    def test_a_smaller_input_is_made_where_no_layer_counts_on_its_size(self):
        said = self.made_of(made.convolutions(), (1, 12, 12), ["int8-minmax"], sizes=[8])
        self.assertEqual(said["at-8-fp32"]["outcome"], "made", said["at-8-fp32"])
        session = self.open(said["at-8-fp32"])
        self.assertEqual(session.get_inputs()[0].shape[1:], [1, 8, 8])
        self.assertEqual(said["at-8-int8-entropy"]["outcome"], "made")

    def test_a_smaller_input_is_refused_where_one_does(self):
        said = self.made_of(made.convolutions(flat=True), (1, 12, 12), [], sizes=[8])
        self.assertEqual(said["at-8-fp32"]["outcome"], "refused")
        self.assertIn("counts on the size", said["at-8-fp32"]["why"])
        self.assertEqual(said["at-8-int8-entropy"]["outcome"], "refused")

    def test_what_is_no_longer_the_same_model_is_refused(self):
        parent, wrong = made.perceptron(), made.perceptron(seed=9)
        kept = rewrite.half
        rewrite.half = lambda model: wrong
        try:
            said = self.made_of(parent, (256,), ["fp16"])
        finally:
            rewrite.half = kept
        self.assertEqual(said["fp16"]["outcome"], "refused")
        self.assertIn("first labels", said["fp16"]["why"])

    def test_answers_that_are_no_numbers_are_refused(self):
        parent = made.perceptron()
        broken = onnx.ModelProto.FromString(parent.SerializeToString())
        last = next(weight for weight in broken.graph.initializer if weight.name == "d")
        last.CopyFrom(onnx.numpy_helper.from_array(np.full(10, np.nan, np.float32), "d"))
        kept = rewrite.half
        rewrite.half = lambda model: broken
        try:
            said = self.made_of(parent, (256,), ["fp16"])
        finally:
            rewrite.half = kept
        self.assertEqual((said["fp16"]["outcome"], "finite" in said["fp16"]["why"]), ("refused", True))

    def test_vectors_have_to_point_the_same_way(self):
        said = self.made_of(made.perceptron(), (256,), ["int8-minmax", "fp16"], kind="feature-extraction")
        self.assertEqual({one["outcome"] for one in said.values()}, {"made"})
        self.assertGreater(said["int8-minmax"]["check"]["cosine_mean"], 0.99)

    def test_outputs_are_not_rounded(self):
        said = self.made_of(made.perceptron(), (256,), ["int8-entropy"])
        model = onnx.load(self.path / "made" / said["int8-entropy"]["file"])
        last = next(node for node in model.graph.node if "y" in node.output)
        self.assertEqual(last.op_type, "Gemm")


class Cuts(unittest.TestCase):
    def test_what_the_layer_never_gets_is_given_up_first(self):
        """A direction of W that is large but that no input has costs nothing, and W's own decomposition would keep it."""
        rng = np.random.default_rng(0)
        weight = made.weight(rng, 64, 64)
        weight[32:] *= 10.0
        layer = factor.Layer(None, weight, "w")
        x = rng.standard_normal((1_000, 64)).astype(np.float32)
        x[:, 32:] = 0.0
        layer.see(x)
        left, right, energy = layer.decompose()
        cut = (x @ left[:, :32]) @ right[:32]
        self.assertLess(np.abs(cut - x @ weight).max(), 0.05 * np.abs(x @ weight).max())
        u, s, vt = np.linalg.svd(weight)
        plain = (x @ (u[:, :32] * s[:32])) @ vt[:32]
        self.assertGreater(np.abs(plain - x @ weight).max(), 0.3 * np.abs(x @ weight).max())

    def test_a_layer_of_full_rank_stays_whole(self):
        rng = np.random.default_rng(0)
        layer = factor.Layer(None, np.linalg.qr(rng.standard_normal((128, 128)))[0].astype(np.float32), "w")
        layer.see(rng.standard_normal((4_000, 128)))
        self.assertIsNone(layer.rank(layer.decompose()[2], 0.01))


class Suits(unittest.TestCase):
    def test_a_model_without_weights_gains_nothing_by_eight_bits(self):
        nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
        model = made.model(nodes, {}, [("x", ["N", 4])], [("y", ["N", 4])])
        with self.assertRaises(Refused):
            quantise.dynamic(model, tempfile.gettempdir())
