"""Registering models, and what is told of them, at a real server."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import PIL.Image
import pytest
from conftest import ROOT
from scripted import Scripted, broken, reply

from modelless import BadRequest, Client, Conflict, InputError, MissingPackage, NotFound, NotMeasured, Retries, ServerFailed
from modelless._inputs import TaskForm
from modelless._sets import pack

FASHION = ROOT / "examples/fashion"
TEXT = ROOT / "crates/adapter/tests/golden/text"
GREY = {"kind": "image-classification", "width": 28, "height": 28, "channels": "grey"}


@pytest.fixture
def made(client: Client) -> Iterator[List[Tuple[str, str, int]]]:
    """Models that a test registers, taken away after it."""
    made: List[Tuple[str, str, int]] = []
    yield made
    for task, name, version in reversed(made):
        client.models.remove(task, name, version=version, force=True)


def some_pictures(count: int) -> List[Tuple[Any, int]]:
    images = gzip.decompress((FASHION / "sample/sample-2000-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((FASHION / "sample/sample-2000-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, "u1", offset=16).reshape(-1, 28, 28)
    return [(pixels[at], labels[8 + at]) for at in range(count)]


def test_a_file_is_sent_once_measured_on_pairs_from_memory_and_served(client: Client, made: Any, boot: Path) -> None:
    told: List[Tuple[str, int, int]] = []
    pairs = [(picture.astype("f4") / 255, label) for picture, label in some_pictures(39)]
    pairs.append((np.random.default_rng().random((28, 28), "f4"), 0))  # a set that no server has
    options: Any = dict(
        task="fashion-tensor",
        name="small",
        labelled_set=pairs,
        set_name="forty",
        budget_s=30,  # a whole set, however busy the machine
        progress=lambda what, sent, size: told.append((what, sent, size)),
    )
    (known,) = client.models.register(FASHION / "models/cnn_s.onnx", **options)
    made.append(("fashion-tensor", "small", 1))
    assert (known.name, known.version, known.default, known.measured) == ("small", 1, True, True)
    assert known.variants == ("small-fp32",)
    (variant,) = [one for one in client.tasks.get("fashion-tensor").variants if one.name == "small-fp32"]
    accuracy = variant.raw["profiles"][0]["accuracy"]
    assert (accuracy["set"], accuracy["samples"], accuracy["provenance"]) == ("forty", 40, "measured")
    right = sum(
        int(client.query("fashion-tensor", picture, variant="small-fp32").numpy().argmax()) == label for picture, label in pairs
    )
    assert variant.accuracy == pytest.approx(right / 40)
    # The server has the demo's file already: only the set was sent.
    assert {what for what, _, _ in told} == {"forty (labelled set)"} and told[-1][1] == told[-1][2]
    told.clear()
    (again,) = client.models.register(FASHION / "models/cnn_s.onnx", **options)
    assert again.variants == known.variants and told == []


def test_a_set_of_files_measures_what_the_command_line_measures(client: Client, made: Any) -> None:
    before = {one.name: one for one in client.tasks.get("fashion").variants}
    (known,) = client.models.register(
        FASHION / "models/linear.onnx",
        task="fashion",
        name="linear",
        version=2,
        adapter=GREY,
        labelled_set=FASHION / "sample/sample-2000-images-idx3-ubyte.gz",
        set_name="the demo's",
        owner="tests",
        budget_s=30,  # a whole set, however busy the machine
    )
    made.append(("fashion", "linear", 2))
    assert known.variants == ("linear.v2-fp32",) and not known.default
    (variant,) = [one for one in client.tasks.get("fashion").variants if one.name == "linear.v2-fp32"]
    assert variant.accuracy == before["linear-fp32"].accuracy and not variant.default
    versions = client.models.versions("fashion", "linear")
    assert [(one.version, one.default, one.owner) for one in versions] == [(2, False, "tests"), (1, True, "")]
    assert client.models.promote("fashion", "linear", 2).default == 2
    with pytest.raises(Conflict):
        client.models.rollback("fashion", "linear", version=1)
    assert client.models.rollback("fashion", "linear").default == 1


def test_a_folder_makes_its_task_and_brings_a_tokenizer_and_texts_are_asked_in_lists(client: Client, tmp_path: Path) -> None:
    for file in ("tiny.onnx", "tokenizer.json"):
        shutil.copy(TEXT / file, tmp_path / file)
    (tmp_path / "models").mkdir()
    (tmp_path / "task.toml").write_text(
        'name = "vectors"\nkind = "feature-extraction"\nmetric = "nearest"\nlive-accuracy = "floors"\n'
        'space = { name = "vectors", dimension = 8 }\ngoals = { latency_ms = 9000 }\n'
    )
    (tmp_path / "models/tiny.toml").write_text(
        'name = "tiny"\naccuracy = 0.9\nlicence = "MIT"\n\n[adapter]\nkind = "feature-extraction"\noutput = "last_hidden_state"\n'
        'pooling = "mean"\nnormalise = true\ndimension = 8\n\n[adapter.tokens]\ntokenizer = "../tokenizer.json"\nmax = 64\n\n'
        '[[variants]]\nprecision = "fp32"\nfile = "../tiny.onnx"\n'
    )
    (known,) = client.models.register(tmp_path)
    assert known.variants == ("tiny-fp32",)
    task = client.tasks.get("vectors")
    assert task.defaults["latency_ms"] == 9000 and task.raw["live_accuracy"] == "floors"

    cases = [case for case in json.loads((TEXT / "cases.json").read_text())]
    one = client.query("vectors", cases[0]["text"])
    assert one.numpy().shape == (8,) and one.numpy() == pytest.approx(cases[0]["mean_unit"], abs=1e-2)
    # Many more than one request takes.
    texts = [case["text"] for case in cases] * (1_000 // len(cases) + 1)
    answers = client.query("vectors", texts)
    assert len(answers) == len(texts) > 1_000
    for case, answer in zip(cases * len(texts), answers):
        assert answer.vector == pytest.approx(case["mean_unit"], abs=1e-2)
    assert len({answer.query_id for answer in answers}) == len(texts)
    assert client.query("vectors", b"caf\xc3\xa9").raw == client.query("vectors", "café").raw
    written = tmp_path / "a.txt"
    written.write_text(cases[0]["text"], "utf-8")
    assert client.query("vectors", written).vector == pytest.approx(one.vector)
    with pytest.raises(InputError, match="^input 70 of the list: .*cannot take a int"):
        client.query("vectors", ["a text"] * 70 + [7])
    with pytest.raises(BadRequest, match="^input 70 of the list: (?!text)") as caught:
        client.query("vectors", ["a text"] * 70 + [" "])
    assert caught.value.index == 70

    client.models.remove("vectors", "tiny", force=True)
    client.tasks.remove("vectors")
    with pytest.raises(NotFound):
        client.query("vectors", "a text")


def test_a_task_that_is_made_here_can_be_asked_when_it_has_a_model(client: Client, made: Any, tmp_path: Path) -> None:
    pictures = []
    for name, label in (("boot", "Ankle boot"), ("shirt", "Shirt")):
        shutil.copy(FASHION / f"pictures/{name}.png", tmp_path)
        pictures.append(f"{name}.png,{label}")
    (tmp_path / "set.csv").write_text("\n".join(pictures))
    labels = list(client.tasks.get("fashion").labels)
    task = client.tasks.create("clothes", "image-classification", labels=labels, description="made by a test")
    assert task.labels == tuple(labels) and task.variants == ()
    client.models.register(
        FASHION / "models/cnn_s.onnx", task="clothes", name="s", adapter=GREY, labelled_set=tmp_path / "set.csv", budget_s=2
    )
    (variant,) = client.tasks.get("clothes").variants
    assert variant.raw["profiles"][0]["accuracy"]["samples"] == 2
    assert client.query("clothes", FASHION / "pictures/boot.png").label == "Ankle boot"
    assert client.models.remove("clothes", "s", force=True) == ["s@1"]
    client.tasks.remove("clothes")


def test_what_is_wrong_with_a_model_is_told(client: Client, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(BadRequest):
        client.models.register(tmp_path / "bad.onnx", task="fashion-tensor", name="bad")
    assert "bad" not in [one.name for one in client.models.list("fashion-tensor")]
    manifest = tmp_path / "model.toml"
    for text, said in (
        ('name = "m"\nartefakt = "x"', "no setting 'artefakt'"),
        ('name = "m"\n[adapter]\nkind = "tensor"', "no `artefact`"),
        ('name = "m"\nartefact = "gone.onnx"\n[adapter]\nkind = "tensor"', "say which task"),
        ('task = "fashion"\nname = "m"\nartefact = "gone.onnx"\n[adapter]\nkind = "tensor"', "there is no such file"),
        ('task = "fashion"\nname = "m"\nlabels = ["a"]\nartefact = "bad.onnx"\n[adapter]\nkind = "tensor"', "other labels"),
        ('task = "fashion"\nname = "m"\nmetric = "f1"\nartefact = "bad.onnx"\n[adapter]\nkind = "tensor"', "is f1; task"),
        ("name = ", "model.toml"),
    ):
        manifest.write_text(text)
        with pytest.raises(InputError, match=said):
            client.models.register(manifest)
    with pytest.raises(InputError, match="is for a single file"):
        client.models.register(manifest, precision="int8")
    with pytest.raises(InputError, match="there is no "):
        client.models.register(tmp_path / "gone")
    with pytest.raises(InputError, match="item 1 of the labelled set has the label 'Hat'"):
        pairs = [(PIL.Image.new("L", (28, 28)), "Bag"), (PIL.Image.new("L", (28, 28)), "Hat")]
        client.models.register(FASHION / "models/cnn_s.onnx", task="fashion", name="x", adapter=GREY, labelled_set=pairs)


def test_feedback_is_taken_by_label_and_by_verdict(client: Client, boot: Path) -> None:
    answer = client.query("fashion", boot, variant="cnn_l-int8")
    first = client.feedback(answer, label="Ankle boot")
    assert (first.stored, first.verdict, first.variant, first.task) == ("new", "correct", "cnn_l-int8", "fashion")
    second = client.feedback(answer.query_id, correct=False)
    assert (second.stored, second.verdict) == ("changed", "wrong") and "value" in second.live_accuracy
    with pytest.raises(InputError, match="say either"):
        client.feedback(answer)
    with pytest.raises(BadRequest, match="has no label"):
        client.feedback(answer, label="Boot")


def test_an_explanation_names_every_candidate_and_agrees_with_what_answers(client: Client, boot: Path) -> None:
    explained = client.explain("fashion", accuracy=0.9, prefer="cost")
    assert len(explained.candidates) == 12 and explained.chosen is not None and explained.action in ("send", "load")
    assert explained.variant == explained.chosen.variant and str(explained.variant) in str(explained)
    below = [one for one in explained.candidates if one.finding == "below_floor"]
    assert below and all(one.accuracy < 0.9 for one in below)
    refused = client.explain("fashion", accuracy=0.99)
    assert (refused.action, refused.reason) == ("refuse", "floor_unreachable")
    assert refused.nearest is not None and refused.nearest.accuracy and "could be met" in str(refused)


def test_the_same_set_packs_to_the_same_bytes_whichever_way_it_is_given(tmp_path: Path) -> None:
    form = TaskForm.of({"name": "t", "kind": "image-classification"})
    labels = [str(at) for at in range(10)]
    pack(form, labels, some_pictures(2000), tmp_path / "pairs.gz")
    pack(form, labels, FASHION / "sample/sample-2000-images-idx3-ubyte.gz", tmp_path / "idx.gz")
    pack(form, labels, str(FASHION / "sample/sample-2000-images-idx3-ubyte.gz"), tmp_path / "again.gz")
    packed = [(tmp_path / name).read_bytes() for name in ("pairs.gz", "idx.gz", "again.gz")]
    assert packed[0] == packed[1] == packed[2]
    lines = gzip.decompress(packed[0]).splitlines()
    assert len(lines) == 2000 and set(json.loads(lines[0])) == {"label", "input"}
    with pytest.raises(InputError, match="is empty"):
        pack(form, labels, [], tmp_path / "none.gz")


def test_a_label_is_a_whole_number_or_a_text(tmp_path: Path) -> None:
    form = TaskForm.of({"name": "t", "kind": "image-classification"})
    labels = [str(at) for at in range(10)]
    picture = some_pictures(1)[0][0]
    for label in (3, np.int64(3), np.float32(3.0), np.array(3), "3"):
        pack(form, labels, [(picture, label)], tmp_path / "set.gz")
        assert int(json.loads(gzip.decompress((tmp_path / "set.gz").read_bytes()))["label"]) == 3
    wrongs: List[Any] = [1.7, np.float64(1.7), float("nan"), float("inf"), None, [1], np.array([1, 2])]
    for wrong in wrongs:
        with pytest.raises(InputError, match="item 1 of the labelled set: the label .* is neither a whole number nor a text"):
            pack(form, labels, [(picture, 1), (picture, wrong)], tmp_path / "set.gz")


MODEL: Dict[str, Any] = {"id": 1, "name": "m", "version": 1, "default": True, "variants": [{"id": 1, "name": "m-fp32", "measured": False}]}


@pytest.fixture
def server() -> Iterator[Scripted]:
    """A server that answers as it is told, and has no artefact."""
    server = Scripted()
    yield server
    server.close()


def absent(server: Scripted, file: Path) -> str:
    import hashlib

    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    server.others[f"GET /v1/artefacts/{sha256}"] = reply(404, '{"error": "there is none", "reason": "unknown_artefact"}')
    return sha256


def test_an_upload_goes_piece_by_piece_and_once_more_when_it_breaks(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(bytes(range(256)) * (3 << 12))  # three pieces
    sha256 = absent(server, file)
    kept = reply(201, json.dumps({"sha256": sha256, "bytes": file.stat().st_size}))
    server.replies = [broken, kept, reply(201, json.dumps({**MODEL, "variants": [{"name": "m-fp32", "measured": True}]}))]
    told: List[int] = []
    with Client(server.url, retries=Retries(pause=0.001)) as client:
        (known,) = client.models.register(file, task="t", progress=lambda _, sent, size: told.append(sent))
    assert known.measured and known.variants == ("m-fp32",)
    first, second, register = server.queries()
    assert first.body == second.body == file.read_bytes()
    assert told == [1 << 20, 2 << 20, 3 << 20] * 2
    assert json.loads(register.body)["variants"][0]["artefact_sha256"] == sha256


def test_an_upload_that_arrives_as_something_else_is_not_registered(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"model")
    absent(server, file)
    server.replies = [reply(201, json.dumps({"sha256": "0" * 64, "bytes": 5}))]
    with Client(server.url) as client, pytest.raises(ServerFailed, match="arrived as something else"):
        client.models.register(file, task="t")


def test_measuring_in_a_cluster_is_waited_for_and_its_failure_told(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"model")
    sha256 = absent(server, file)
    answers: List[Any] = []

    def shown(connection: Any) -> bool:
        variant = {"name": "m-fp32", "profiles": [], "measuring": [], "unavailable": None, **answers.pop(0)}
        return reply(200, json.dumps({"versions": [{**MODEL, "task": "t", "variants": [variant]}]}))(connection)

    server.others["GET /v1/models/t/m"] = shown
    running = {"state": "running", "node": "one", "progress": "timing", "attempts": 1}
    profile = {"latency": {"provenance": "measured"}, "warnings": ["is it the right set?"]}
    kept = reply(201, json.dumps({"sha256": sha256, "bytes": 5}))
    answers += [{"measuring": [running]}, {"profiles": [profile]}]
    server.replies = [kept, reply(202, json.dumps(MODEL))]
    with Client(server.url) as client:
        (known,) = client.models.register(file, task="t")
        assert known.measured and known.warnings == ("m-fp32: is it the right set?",)
        answers += [{"measuring": [{**running, "state": "failed", "attempts": 3, "why": "it is broken"}]}]
        server.replies = [kept, reply(202, json.dumps(MODEL))]
        with pytest.raises(NotMeasured, match="could not be measured at node one: it is broken"):
            client.models.register(file, task="t")
        server.replies = [kept, reply(202, json.dumps(MODEL))]
        (known,) = client.models.register(file, task="t", wait=False)
        assert not known.measured


def test_a_cluster_is_asked_to_promote_what_it_has_measured_and_not_before(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"model")
    sha256 = absent(server, file)
    profile = {"latency": {"provenance": "measured"}, "warnings": []}
    variant = {"name": "m-fp32", "profiles": [profile], "measuring": [], "unavailable": None}
    told = {"versions": [{**MODEL, "task": "t", "variants": [variant]}]}
    server.others["GET /v1/models/t/m"] = reply(200, json.dumps(told))
    candidate = {**MODEL, "default": False}
    kept = reply(201, json.dumps({"sha256": sha256, "bytes": 5}))
    promoted = reply(200, json.dumps({"name": "m", "default": MODEL["version"], "before": 1, "change": {}, "unknown": []}))
    with Client(server.url) as client:
        server.replies = [kept, reply(202, json.dumps(candidate)), promoted]
        (known,) = client.models.register(file, task="t", promote=True)
        assert known.default and known.measured
        assert server.queries()[-1].target == "/v1/models/t/m/promote"
        assert json.loads(server.queries()[-1].body)["version"] == MODEL["version"]
        server.replies = [kept, reply(202, json.dumps(candidate))]
        (known,) = client.models.register(file, task="t")
        assert known.measured and not known.default, "nobody asked for it"
        server.replies = [kept, reply(202, json.dumps(candidate))]
        (known,) = client.models.register(file, task="t", promote=True, wait=False)
        assert not known.default


def test_a_bar_needs_tqdm_and_shows_every_byte(server: Scripted, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"m" * 2048)
    sha256 = absent(server, file)
    kept = reply(201, json.dumps({"sha256": sha256, "bytes": 2048}))
    done = reply(201, json.dumps({**MODEL, "variants": [{"name": "m-fp32", "measured": True}]}))
    server.replies = [kept, done]
    with Client(server.url) as client:
        client.models.register(file, task="t", progress=True)
        assert "m.onnx: 100%" in capsys.readouterr().err
        monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
        with pytest.raises(MissingPackage, match="pip install tqdm"):
            client.models.register(file, task="t", progress=True)
