"""Arguments that there are not, and sources that are none: told as what cannot be sent, with what was probably meant."""

from __future__ import annotations

from typing import Any, Callable, Dict

import pytest

import modelless
from modelless import Client, InputError
from modelless._catalog import begin_trial, promote, roll_back, stop_trial
from modelless._core import Core
from modelless._job import JobOutput
from modelless._retry import Budget, Retries
from pretend import Pretend

from modelless._effects import Reply

NOWHERE = "http://127.0.0.1:1"
CALLS: Dict[str, Callable[[Client, Dict[str, Any]], Any]] = {
    "query": lambda client, more: client.query("t", "x", **more),
    "explain": lambda client, more: client.explain("t", **more),
    "jobs.submit": lambda client, more: client.jobs.submit("t", ["x"], **more),
    "jobs.estimate": lambda client, more: client.jobs.estimate("t", 1, **more),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_goal_that_there_is_not_is_told_with_the_one_that_was_meant(call: str) -> None:
    with Client(NOWHERE) as client:
        with pytest.raises(InputError, match="no option or goal 'acuracy'; did you mean 'accuracy'\\?"):
            CALLS[call](client, {"acuracy": 0.9})
        with pytest.raises(InputError, match="'colour'; there are accuracy, latency_ms"):
            CALLS[call](client, {"colour": "red"})


def test_what_cannot_be_registered_is_told_before_anything_is_sent() -> None:
    with Client(NOWHERE) as client:
        with pytest.raises(InputError, match="a object is no model that can be registered; give a model.toml"):
            client.models.register(object(), task="t", name="m")
        with pytest.raises(InputError, match="no option 'labeled_set'; did you mean 'labelled_set'\\?"):
            wrong: Any = {"labeled_set": []}
            client.models.register("m.onnx", **wrong)


def test_which_version_is_the_default_is_told_by_names() -> None:
    told = Reply(200, {}, b'{"name": "m", "default": 2, "before": null, "change": {}, "unknown": ["m-fp32: not measured"]}')
    core = Core(Budget(Retries()), 1)
    for asked in (promote(core, "t", "m", 2, False, ""), roll_back(core, "t", "m", None, False, "")):
        changed = Pretend(lambda pretend, send: told).run(asked)
        assert changed == modelless.DefaultVersion("m", 2, None, ("m-fp32: not measured",))
        assert changed.raw["change"] == {}


def test_a_trial_is_told_by_names() -> None:
    told = Reply(
        200,
        {},
        b'{"trial": {"id": "trial-3", "task": "t", "model": "m", "version": 2, "against": 1, "share": 0.05, "state": "running",'
        b' "cause": null, "verdict": {"verdict": "too_few_yet"}, "candidate": {"answered": 7}}, "told": ["m-fp32: not measured"]}',
    )
    core = Core(Budget(Retries()), 1)
    begun = Pretend(lambda pretend, send: told).run(begin_trial(core, "t", "m", 2, (0.05, False), 1.5, True, False, ""))
    assert (begun.id, begun.version, begun.against, begun.state, begun.verdict) == ("trial-3", 2, 1, "running", "too_few_yet")
    assert begun.told == ("m-fp32: not measured",) and begun.raw["candidate"]["answered"] == 7
    assert Pretend(lambda pretend, send: told).run(stop_trial(core, "t", "")).cause is None


def test_an_output_of_a_job_tells_no_time_that_it_does_not_have() -> None:
    told = {"at": 0, "name": "a", "answer": [], "variant": "v-int8", "device_ms": 1.5, "cost_usd_per_1k": 0.1}
    answer = JobOutput.of(told, "t", "image-classification").answer
    assert answer is not None
    assert str(answer.decision).startswith("v-int8, 1.5 ms of a device: an offline job's input")
