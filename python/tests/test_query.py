"""Asking a real server: every form of input, goals, answers, errors."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any, List

import numpy as np
import PIL.Image
import pytest
from pretend import Pretend
from scripted import ANSWER, DECISION

import modelless
from modelless import AnswerKind, BadRequest, Client, Goals, GoalsUnreachable, InputError, InputFailed, NotFound, Overloaded
from modelless._core import Core, How
from modelless._effects import Reply, Send
from modelless._retry import Budget


def pixels(boot: Path) -> Any:
    return np.asarray(PIL.Image.open(boot).convert("L"))


def test_a_picture_is_classified_and_the_decision_is_told(client: Client, boot: Path) -> None:
    answer = client.query("fashion", boot, accuracy=0.9, latency_ms=4000)
    assert (answer.label, len(answer.labels)) == ("Ankle boot", 5)
    assert answer.score == max(entry.score for entry in answer.labels)
    decision = answer.decision
    assert decision.accuracy is not None and decision.accuracy >= 0.9
    assert decision.variant.startswith(decision.model) and decision.node == "local" and decision.space == "fashion"
    assert 0 < decision.run_ms <= decision.total_ms and decision.batch >= 1 and decision.cost > 0
    assert decision.reason and answer.query_id and decision.accuracy_provenance == "measured"
    assert str(decision) in repr(answer)


def test_every_form_of_a_picture_is_the_same_picture(client: Client, boot: Path) -> None:
    array = pixels(boot)
    forms: List[Any] = [
        boot,
        str(boot),
        boot.read_bytes(),
        bytearray(boot.read_bytes()),
        PIL.Image.open(boot),
        array,
        array[:, :, None],
        np.repeat(array[:, :, None], 3, axis=2),
        np.ascontiguousarray(array.T).T,
    ]
    answers = [client.query("fashion", form, variant="cnn_m-fp32") for form in forms]
    for answer in answers:
        assert answer.raw == answers[0].raw


def test_a_picture_that_was_opened_keeps_the_orientation_of_its_file(client: Client, boot: Path) -> None:
    lying = PIL.Image.open(boot).convert("RGB").rotate(90, expand=True)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    file = io.BytesIO()
    lying.save(file, "PNG", exif=exif)
    opened = PIL.Image.open(io.BytesIO(file.getvalue()))
    turned = client.query("fashion", opened, variant="cnn_m-fp32")
    assert turned.raw == client.query("fashion", file.getvalue(), variant="cnn_m-fp32").raw
    assert turned.raw == client.query("fashion", boot, variant="cnn_m-fp32").raw
    assert turned.raw != client.query("fashion", lying, variant="cnn_m-fp32").raw


@pytest.mark.parametrize("mode", ["1", "LA", "P", "RGBA", "CMYK", "HSV", "F"])
def test_pictures_of_every_mode_are_taken(client: Client, boot: Path, mode: str) -> None:
    picture = PIL.Image.open(boot).convert("RGB")
    picture = picture.convert("L").convert(mode) if mode in ("1", "LA", "F") else picture.convert(mode)
    assert len(client.query("fashion", picture, top_k=2).labels) == 2


def test_top_k_and_other_parameters_go_along(client: Client, boot: Path) -> None:
    assert len(client.query("fashion", boot, top_k=1).labels) == 1
    answer = client.query("fashion", boot, parameters={"top_k": 10, "function_to_apply": "none"})
    assert len(answer.labels) == 10 and answer.score > 1


def test_tensors_go_by_array_by_name_by_bytes_and_by_lists(client: Client, boot: Path) -> None:
    array = pixels(boot).astype("float32") / 255
    forms: List[Any] = [
        array,
        array.reshape(1, 1, 28, 28),
        array.ravel(),
        {"input": array},
        {"input": array.reshape(1, 28, 28).tolist()},
        array.tobytes(),
        array.astype("float64"),
    ]
    answers = [client.query("fashion-tensor", form) for form in forms]
    logits = answers[0].numpy()
    assert logits.shape == (10,) and logits.dtype == np.float32 and int(logits.argmax()) == 9
    for answer in answers:
        np.testing.assert_array_equal(np.asarray(answer), logits)
    (output,) = answers[0]
    assert output.tolist() == output.data and output.shape == (10,) and output.name == "logits"


def test_an_output_that_json_cannot_say_is_named(client: Client) -> None:
    with pytest.raises(InputFailed, match='the output "logits": element 0 is not finite') as caught:
        client.query("fashion-tensor", np.full((28, 28), np.nan, "f4"))
    assert caught.value.reason == "model_error"


def test_a_list_is_answered_in_its_order_and_each_has_its_own_decision(client: Client, boot: Path) -> None:
    names = ["boot", "shirt"] * 20
    answers = client.query("fashion", [boot.with_name(f"{name}.png") for name in names], variant="cnn_l-int8")
    assert [answer.label for answer in answers] == ["Ankle boot" if name == "boot" else "Shirt" for name in names]
    assert len({answer.query_id for answer in answers}) == len(names)
    assert client.query("fashion", []) == []


@pytest.mark.parametrize(("kind", "value", "count"), [("feature-extraction", "a text", 65), ("tensor", b"\0\0\0\0", 2)])
def test_answers_of_two_output_spaces_are_never_of_one_list(kind: str, value: Any, count: int) -> None:
    task = {"name": "t", "kind": kind, "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}

    def query(*spaces: str) -> Any:
        left = iter(spaces)

        def serve(pretend: Pretend, send: Send) -> Reply:
            if send.method == "GET":
                return Reply(200, {}, json.dumps(task).encode())
            size = len(json.loads(send.content)["inputs"]) if kind == "feature-extraction" else 1
            body = json.dumps([[1.0]] * size) if kind == "feature-extraction" else ANSWER
            names = ", ".join(["name"] * size)
            return Reply(200, {**DECISION, "modelless-query-id": names, "modelless-space": next(left)}, body.encode())

        return Pretend(serve).run(Core(Budget(modelless.Retries()), 16).query("t", [value] * count, Goals(), {}, How()))

    assert len(query("one", "one")) == count
    with pytest.raises(Overloaded, match="different output spaces; ask again") as caught:
        query("one", "other")
    assert (caught.value.status, caught.value.reason) == (503, "space_changed")


def test_one_client_serves_many_threads(client: Client, boot: Path) -> None:
    wrong: List[Any] = []

    def ask(name: str, label: str) -> None:
        for _ in range(10):
            answer = client.query("fashion", boot.with_name(name), variant="cnn_l-int8")
            if answer.label != label:
                wrong.append(answer)

    pairs = [("boot.png", "Ankle boot"), ("shirt.png", "Shirt")] * 4
    threads = [threading.Thread(target=ask, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_goals_that_cannot_be_met_are_refused_with_the_nearest(client: Client, boot: Path) -> None:
    with pytest.raises(GoalsUnreachable) as caught:
        client.query("fashion", boot, accuracy=0.99)
    error = caught.value
    assert (error.status, error.reason) == (422, "floor_unreachable")
    assert error.nearest is not None and error.nearest.accuracy is not None
    assert f"could be met, the other goals as they were: accuracy={error.nearest.accuracy:g}" in str(error)
    answer = client.query("fashion", boot, accuracy=error.nearest.accuracy)
    assert answer.decision.accuracy == error.nearest.accuracy


def test_an_unknown_task_is_told_with_one_that_is_near(client: Client, boot: Path) -> None:
    with pytest.raises(NotFound, match='did you mean "fashion"'):
        client.query("fashon", boot)


def test_what_is_no_picture_is_told_with_its_place_in_a_list(client: Client, boot: Path) -> None:
    with pytest.raises(BadRequest, match="input 1 of the list: .*JPEG or PNG") as caught:
        client.query("fashion", [boot, b"abc", boot])
    assert caught.value.index == 1


def test_asking_for_a_part_that_an_answer_has_not_says_which_it_has(client: Client, boot: Path) -> None:
    answer = client.query("fashion", boot)
    with pytest.raises(AnswerKind, match="have no vector; they have labels"):
        answer.vector
    assert not hasattr(answer, "outputs")


@pytest.mark.parametrize(
    "goals",
    [
        {"accuracy": 1.1},
        {"accuracy": "0.9"},
        {"latency_ms": 0},
        {"latency_ms": float("nan")},
        {"max_cost": -1},
        {"prefer": "speed"},
        {"fallback": "yes"},
        {"priority": 10},
        {"priority": True},
    ],
)
def test_a_goal_that_is_none_is_told_before_anything_is_sent(boot: Path, goals: Any) -> None:
    with Client("http://127.0.0.1:9") as nowhere, pytest.raises(InputError, match=next(iter(goals))):
        nowhere.query("fashion", boot, **goals)


def test_goals_are_written_as_decimals() -> None:
    goals = modelless.Goals(accuracy=1e-05, latency_ms=3_600_000.0, max_cost=0.1, priority=3, model="a b@2")
    assert goals.query() == "accuracy=0.00001&latency_ms=3600000&max_cost=0.1&priority=3&model=a%20b%402"
    assert goals.query(12.3456) == goals.query().replace("3600000", "12.3456")


def test_an_unknown_goal_is_told_with_the_one_that_was_meant(client: Client, boot: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'accuracy'"):
        client.query("fashion", boot, acuracy=0.9)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((28, 28)), "uint8, and this one is float64; times 255"),
        (np.zeros((2, 28, 28, 3), "uint8"), "for several pictures give a list"),
        (7, "cannot take a int"),
        ("no-such-file.png", "cannot read 'no-such-file.png'"),
    ],
)
def test_pictures_that_cannot_be_sent_are_told(client: Client, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        client.query("fashion", value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((3, 1, 28, 28), "f4"), r"for several inputs give a list, such as list\(array\)"),
        (np.zeros((27, 28), "f4"), r"has the shape \(1, 28, 28\)"),
        (np.full((28, 28), 1e300), "which cannot hold 1e\\+300"),
        (np.zeros((28, 28), "complex64"), "complex64 does not become that by itself"),
        ({"inptu": np.zeros((28, 28), "f4")}, "has the inputs input, and these are inptu"),
    ],
)
def test_tensors_that_do_not_fit_are_told(client: Client, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        client.query("fashion-tensor", value)


def test_what_is_no_address_is_told() -> None:
    for server in ("127.0.0.1:8080", "ftp://here", "http://", "http://here?x=1"):
        with pytest.raises(InputError, match="is no address of a server"):
            Client(server)


def test_a_server_that_is_not_there_is_told_with_what_to_do(boot: Path) -> None:
    with Client("http://127.0.0.1:9", retries=modelless.Retries(attempts=1)) as nowhere:
        with pytest.raises(modelless.Unreachable, match="Is a server running"):
            nowhere.query("fashion", boot)
