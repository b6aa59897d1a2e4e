"""How answers and descriptions look, in programs and in notebooks, and what is needed for it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Iterator

import pytest
from scripted import ANSWER, DECISION, Scripted, reply

from modelless import Client, GoalsUnreachable, Label, Task, Variant
from modelless._errors import refusal

SVG = "{http://www.w3.org/2000/svg}"


def test_a_task_shows_its_frontier(client: Client) -> None:
    task = client.tasks.get("fashion")
    assert len(task.variants) == len(task.raw["variants"]) and "Ankle boot" in task.labels
    best = task.frontier()
    known = [one for one in task.variants if one.default]
    for one in best:
        assert one.latency_ms is not None and one.accuracy is not None
        quicker = [other for other in known if (other.latency_ms or 0) < one.latency_ms]
        assert all((other.accuracy or 0) < one.accuracy for other in quicker)
    assert [one.latency_ms for one in best] == sorted(one.latency_ms or 0 for one in best)
    picture = ElementTree.fromstring(task.frontier_svg())
    marks = [group for group in picture.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert len(marks) == len(task.variants)
    assert sum(mark.get("fill") == "currentColor" for mark in marks) == len(best)
    (line,) = picture.iter(f"{SVG}polyline")
    assert len((line.get("points") or "").split()) == len(best)
    html = task._repr_html_()
    assert "<svg" in html and all(one.name in html for one in task.variants)


VARIANT = Variant("v", "m", 1, "onnx", "fp32", 0.5, "measured", 1.0, "measured", True, True)


def shown(*variants: Variant) -> Task:
    return Task("t", "tensor", "top-1", "", None, None, {}, variants=variants)


def test_a_candidate_beats_nobody_that_answers_and_what_is_not_known_has_no_place() -> None:
    better = replace(VARIANT, name="better", accuracy=0.9, default=False)
    unknown = replace(VARIANT, name="unknown", latency_ms=None)
    assert [one.name for one in shown(VARIANT, better, unknown).frontier()] == ["better", "v"]
    beaten = replace(VARIANT, name="beaten", accuracy=0.4)
    assert [one.name for one in shown(VARIANT, beaten).frontier()] == ["v"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_few_or_equal_variants_make_a_picture_too(count: int) -> None:
    variants = [replace(VARIANT, name=f"<v{at}>", latency_known=known) for at, known in enumerate(("measured", "coarse", "estimated"))]
    picture = shown(*variants[:count]).frontier_svg()
    ElementTree.fromstring(picture)
    assert "nan" not in picture and "inf" not in picture


def test_what_a_server_says_is_escaped_in_a_notebook(client: Client, boot: Path) -> None:
    evil = "<script>alert(1)</script>"
    task = replace(shown(replace(VARIANT, name=evil)), name=evil, description=evil, kind=evil)
    answer = client.query("fashion", boot)
    told = replace(answer, raw=[{"label": evil, "score": 1.0}], decision=replace(answer.decision, reason=evil))
    explained = client.explain("fashion")
    worse = replace(explained, task=evil, candidates=(replace(explained.candidates[0], because=evil, variant=evil),))
    for html in (task._repr_html_(), told._repr_html_(), worse._repr_html_()):
        assert "<script" not in html and "&lt;script" in html


def test_answers_and_explanations_have_a_look_in_notebooks(client: Client, boot: Path) -> None:
    answer = client.query("fashion", boot)
    assert "Ankle boot" in answer._repr_html_() and answer.decision.variant in answer._repr_html_()
    assert "logits" in client.query("fashion-tensor", bytes(4 * 784))._repr_html_()
    assert answer.decision.model in client.explain("fashion")._repr_html_()
    assert "could be met" in client.explain("fashion", accuracy=0.99)._repr_html_()


def test_answers_and_errors_travel_between_processes(client: Client, boot: Path) -> None:
    answer = client.query("fashion", boot)
    assert pickle.loads(pickle.dumps(answer)) == answer
    body = b'{"error": "no", "reason": "floor_unreachable", "nearest": {"accuracy": 0.5}}'
    error = refusal(422, {"retry-after": "3"}, body).at(4)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, GoalsUnreachable) and str(again) == str(error)
    assert (again.nearest, again.retry_after, again.index) == (error.nearest, 3.0, 4)  # type: ignore[attr-defined]


@pytest.fixture
def texts() -> Iterator[Scripted]:
    """A server with a task that tells praise from blame."""
    server = Scripted()
    server.others["GET /v1/tasks/t"] = reply(200, json.dumps({"name": "t", "kind": "text-classification", "inputs": []}))
    yield server
    server.close()


def test_texts_are_classified_alone_and_in_lists(texts: Scripted) -> None:
    good, bad = [{"label": "praise", "score": 0.9}], [{"label": "blame", "score": 0.8}]
    several = {**DECISION, "modelless-query-id": "a, b"}
    texts.replies = [reply(200, json.dumps([good]), DECISION), reply(200, json.dumps([good, bad]), several)]
    with Client(texts.url) as client:
        one = client.query("t", "fine")
        assert one.labels == [Label("praise", 0.9)] and (one.label, one.score) == ("praise", 0.9)
        both = client.query("t", ["fine", "dull"], top_k=1)
    assert [(answer.label, answer.query_id) for answer in both] == [("praise", "a"), ("blame", "b")]
    first, second = texts.queries()
    assert (first.body, first.headers["content-type"]) == (b"fine", "text/plain")
    assert json.loads(second.body) == {"inputs": ["fine", "dull"], "parameters": {"top_k": 1}}


WITHOUT = """
import sys
for name in ("numpy", "PIL", "torch", "tqdm", "onnx"):
    sys.modules[name] = None
import modelless
with modelless.Client(sys.argv[1]) as client:
    answer = client.query("fashion", sys.argv[2])
    print(answer.label, answer._repr_html_().count("<tr>"))
    outputs = client.query("fashion-tensor", bytes(4 * 784)).outputs
    print(outputs["logits"].shape, len(outputs["logits"].tolist()))
    print(len(client.tasks.get("fashion").frontier_svg()) > 1000)
    try:
        outputs["logits"].numpy()
    except modelless.MissingPackage as error:
        print(error)
"""


def test_everything_else_works_without_the_packages_that_may_be_missing(url: str, boot: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, url, str(boot)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    label, shape, plot, missing = done.stdout.splitlines()
    assert label.startswith("Ankle boot") and shape == "(10,) 10" and plot == "True"
    assert "needs numpy" in missing and "pip install numpy" in missing


def test_types_come_along_for_those_who_check_them() -> None:
    import modelless

    folder = Path(modelless.__file__).parent
    assert (folder / "py.typed").is_file()


def test_an_answer_says_whether_it_was_given_before_and_how_long_ago() -> None:
    hit = {**DECISION, "modelless-cache": "hit", "age": "7"}
    miss = {**DECISION, "modelless-cache": "miss"}
    elsewhere = {**DECISION, "age": "9"}  # a proxy's, of a task whose answers are not given again
    server = Scripted([reply(200, ANSWER, headers) for headers in (hit, miss, elsewhere)])
    try:
        with Client(server.url) as asking:
            told = [asking.query("t", b"\0\0\x80?", fresh=fresh).decision for fresh in (False, True, False)]
    finally:
        server.close()
    assert [one.headers.get("cache-control") for one in server.queries()] == [None, "no-cache", None]
    assert [(one.cache, one.age_s) for one in told] == [("hit", 7), ("miss", None), ("", None)]


def test_a_task_says_for_how_long_answers_are_given_again() -> None:
    told = {"name": "t", "kind": "tensor"}
    assert Task.of(told).cache == "off" and Task.of({**told, "cache": "10m"}).cache == "10m"


def test_a_task_says_for_how_long_it_is_kept_and_whether_it_sleeps() -> None:
    told = {"name": "t", "kind": "tensor"}
    assert (Task.of(told).keep, Task.of(told).asleep) == ("always", None)
    kept = Task.of({**told, "keep": "10m", "asleep": True})
    assert (kept.keep, kept.asleep) == ("10m", True)
