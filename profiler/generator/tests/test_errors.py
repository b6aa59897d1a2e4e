import errno
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import onnx

import made
from modelless_generator import recipes
from modelless_generator.data import Tensors
from modelless_generator.errors import BadInput
from modelless_generator.recipes import run


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)

    def said(self, parent, **more):
        """The name and the words of what is said."""
        job = made.job(self.path, parent, (256,), ["int8-entropy"], **more)
        return self.said_of(job)

    def said_of(self, job):
        with self.assertRaises(BadInput) as caught:
            run(job, self.path, Tensors, lambda _: None, lambda *_: None)
        return caught.exception.name, str(caught.exception)

    def left(self):
        return sorted(path.name for path in (self.path / "made").iterdir())


class Models(Case):
    def test_what_is_no_model_is_told(self):
        name, text = self.said(b"\x80\x04 certainly no model")
        self.assertEqual(name, "corrupt-model")
        self.assertIn("no ONNX file, or damaged", text)
        self.assertEqual(self.left(), [])

    def test_a_model_that_was_cut_short_is_told(self):
        whole = made.perceptron().SerializeToString()
        self.assertEqual(self.said(whole[: len(whole) // 2])[0], "corrupt-model")

    def test_an_opset_that_nobody_knows_is_told_with_those_that_are_known(self):
        model = made.perceptron()
        model.opset_import[0].version = 999
        name, text = self.said(model)
        self.assertEqual(name, "unknown-opset")
        self.assertIn("999", text)
        self.assertIn(str(onnx.defs.onnx_opset_version()), text)

    def test_operators_of_strangers_are_told(self):
        model = made.perceptron()
        model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
        self.assertIn("com.example", self.said(model)[1])

    def test_a_quantised_model_has_no_variants_of_its_own(self):
        model = made.perceptron()
        model.graph.node[0].op_type = "MatMulInteger"
        self.assertEqual(self.said(model)[0], "already-quantised")

    def test_a_model_that_answers_no_numbers_is_told(self):
        model = made.perceptron()
        for weight in model.graph.initializer:
            if weight.name == "d":
                weight.CopyFrom(onnx.numpy_helper.from_array(np.full(10, np.inf, np.float32), "d"))
        name, text = self.said(model)
        self.assertIn(name, ("parent-not-usable", "activation-not-finite"))
        self.assertIn("finite", text)


class Sets(Case):
    def test_an_empty_set_is_told(self):
        name, text = self.said(made.perceptron(), items=0)
        self.assertEqual(name, "empty-set")
        self.assertIn("calibration set is empty", text)

    def test_a_value_that_is_no_number_is_told_with_its_item(self):
        job = made.job(self.path, made.perceptron(), (256,), ["int8-entropy"])
        values = np.zeros((64, 256), np.float32)
        values[41, 7] = np.nan
        made.dump(self.path / "calibration", values)
        name, text = self.said_of(job)
        self.assertEqual(name, "set-not-finite")
        self.assertIn("item 41 of the calibration set", text)

    def test_a_set_that_is_not_there_is_told(self):
        job = made.job(self.path, made.perceptron(), (256,), ["int8-entropy"])
        (self.path / "calibration" / "input-0.npy").unlink()
        self.assertEqual(self.said_of(job)[0], "unreadable-set")


class Rooms(Case):
    def test_a_full_disk_is_told_and_nothing_half_written_stays(self):
        job = made.job(self.path, made.perceptron(), (256,), ["int8-dynamic", "int8-entropy"])
        run(job | {"bases": [job["bases"][0] | {"recipes": ["int8-dynamic"]}]}, self.path, Tensors, lambda _: None, lambda *_: None)
        before = self.left()
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with mock.patch("modelless_generator.store.os.fsync", side_effect=full):
            name, text = self.said_of(job)
        self.assertEqual(name, "disk-full")
        self.assertIn("start again", text)
        self.assertEqual(self.left(), before, "what was whole stays, what was not goes")
        said = []
        run(job, self.path, Tensors, said.append, lambda *_: None)
        self.assertEqual([one.get("reused", False) for one in said], [True, False])

    def test_a_disk_that_is_full_beneath_a_library_is_told_as_full(self):
        job = made.job(self.path, made.perceptron(), (256,), ["fp16"])
        room = mock.Mock(f_bavail=1, f_frsize=4_096)
        broken = RuntimeError("the library could not write")
        with mock.patch.object(recipes.rewrite, "half", side_effect=broken), mock.patch(
            "modelless_generator.store.os.statvfs", return_value=room
        ):
            self.assertEqual(self.said_of(job)[0], "disk-full")

    def test_a_limit_on_the_size_of_files_leaves_nothing_half_written(self):
        """A real limit on what a process may write, in a process of its own."""
        job = made.job(self.path, made.perceptron(), (256,), ["fp16", "int8-entropy"])
        (self.path / "job.json").write_text(json.dumps(job))
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))
        command = [sys.executable, "-m", "modelless_generator", str(self.path / "job.json")]
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=60)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        made_of_it = [line["variant"]["outcome"] for line in lines if "variant" in line]
        self.assertTrue("error" in lines[-1] or set(made_of_it) == {"failed"}, done.stdout)
        self.assertEqual([name for name in self.left() if not name.startswith("tmp")], [])


class Again(Case):
    def run_once(self, job):
        said = []
        run(job, self.path, Tensors, said.append, lambda *_: None)
        return said

    def test_what_is_there_is_not_made_again(self):
        job = made.job(self.path, made.perceptron(), (256,), ["int8-minmax", "svd-mild", "svd-strong"])
        first = self.run_once(job)
        with mock.patch.object(recipes.Base, "make", side_effect=AssertionError("it was made again")):
            again = self.run_once(job)
        self.assertEqual([one | {"reused": True} for one in first], again)

    def test_an_artefact_that_was_damaged_is_made_again(self):
        job = made.job(self.path, made.perceptron(), (256,), ["int8-minmax"])
        (first,) = self.run_once(job)
        artefact = self.path / "made" / first["file"]
        artefact.write_bytes(artefact.read_bytes()[:-1])
        (again,) = self.run_once(job)
        self.assertNotIn("reused", again)
        self.assertEqual(again["sha256"], first["sha256"], "the same recipe gives the same artefact")

    def test_other_data_make_other_artefacts(self):
        job = made.job(self.path, made.perceptron(), (256,), ["int8-minmax"])
        (first,) = self.run_once(job)
        (other,) = self.run_once(job | {"data_sha256": "other"})
        self.assertNotEqual(first["file"], other["file"])

    def test_what_an_ended_run_left_is_cleared(self):
        job = made.job(self.path, made.perceptron(), (256,), [])
        (self.path / "made" / ".x.onnx.part").write_text("half")
        (self.path / "made" / "tmpx").mkdir()
        (self.path / "made" / "tmpx" / "given.onnx").write_text("half")
        self.run_once(job)
        self.assertEqual(self.left(), [])


class Program(Case):
    def test_says_what_it_does_a_line_at_a_time(self):
        job = made.job(self.path, made.perceptron(), (256,), ["int8-minmax"])
        (self.path / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "modelless_generator", str(self.path / "job.json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(any("step" in line for line in lines))
        self.assertEqual([line["variant"]["outcome"] for line in lines if "variant" in line], ["made"])
        self.assertEqual(lines[-1], {"done": True})
