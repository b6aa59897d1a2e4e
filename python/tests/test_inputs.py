"""What cannot be written is told as that, whoever raised it, with its place in a list."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from conftest import PICTURES

from modelless import InputError, _inputs
from modelless._inputs import TaskForm
from modelless._jobs import Chunks, Source
from modelless._sets import pack

TEXTS = TaskForm("t", "text-classification", (), 100.0)
IMAGES = TaskForm("t", "image-classification", (), 100.0)


def test_texts_that_are_no_utf8_are_told(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"caf\xe9")
    for value, said in ((b"caf\xe9", "is not UTF-8"), (file, "latin.txt' is not UTF-8"), ("\ud800", "no form in UTF-8")):
        with pytest.raises(InputError, match=said):
            _inputs.body(TEXTS, value, None)
        with pytest.raises(InputError, match=said):
            _inputs.native(TEXTS, value)
    with pytest.raises(InputError, match="^input 1 of the list: .*UTF-8"):
        _inputs.texts_body(TEXTS, ["a text", b"\xff"], None)


def test_a_picture_that_breaks_off_is_told() -> None:
    whole = io.BytesIO()
    PIL.Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), "u1")).save(whole, "PNG")
    broken = PIL.Image.open(io.BytesIO(whole.getvalue()[:2_000]))
    with pytest.raises(InputError, match="this picture cannot be read: .*truncated"):
        _inputs.body(IMAGES, broken, None)


def test_a_path_that_no_file_can_have_is_told() -> None:
    with pytest.raises(InputError, match="cannot read"):
        _inputs.body(IMAGES, "a\0b.png", None)


def test_of_a_job_the_input_is_named() -> None:
    inputs: Any = ["a text", b"\xff"]
    with pytest.raises(InputError, match="^input 1 of the list: .*UTF-8") as caught:
        Chunks(TEXTS, Source.of(TEXTS, inputs, None), {}, [0, 1]).next()
    assert caught.value.index == 1


def test_of_a_labelled_set_the_file_is_named(tmp_path: Path) -> None:
    csv, idx = tmp_path / "set.csv", tmp_path / "x-images-idx3-ubyte.gz"
    csv.write_bytes(str(PICTURES / "boot.png").encode() + b",caf\xe9")
    idx.write_bytes(b"no gzip")
    for path, said in ((csv, "set.csv is not UTF-8"), (idx, "cannot be unpacked")):
        with pytest.raises(InputError, match=said):
            pack(IMAGES, [], path, tmp_path / "packed.gz")
