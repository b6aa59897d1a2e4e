"""Offline jobs: what is sent, what is sent again, and what comes back."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import anyio
import anyio.to_thread
import pytest
from conftest import PICTURES
from scripted import Scripted, broken, busy, reply, silent

import modelless
from modelless import Client, InputError, JobNotSent, JobOutput, Retries, Timeout, _jobs
from modelless._inputs import Spec, TaskForm

QUICK = Retries(pause=0.001)
FORM = TaskForm("t", "tensor", (Spec("x", "FP32", (1,)),), 100.0)
INPUT = b"\0\0\0\0"


def test_a_folder_is_answered_as_its_files_would_be(client: Client, tmp_path: Path) -> None:
    for name in ("boot", "shirt"):
        (tmp_path / "below").mkdir(exist_ok=True)
        (tmp_path / "below" / f"{name}.png").write_bytes((PICTURES / f"{name}.png").read_bytes())
    (tmp_path / "a.png").write_bytes(b"no picture")
    (tmp_path / ".hidden").write_bytes(b"x")
    told: List[Any] = []
    results = client.jobs.run("fashion", tmp_path, accuracy=0.9, deadline="1h", name="mine", timeout=60, progress=lambda *how: told.append(how))
    assert [output.name for output in results] == ["a.png", "below/boot.png", "below/shirt.png"]
    bad, boot, shirt = results
    assert bad.answer is None and bad.reason and "picture" in (bad.message or "").lower()
    alone = client.query("fashion", PICTURES / "boot.png", accuracy=0.9)
    assert boot.answer is not None and shirt.answer is not None and boot.reason is None
    assert boot.answer.label == alone.label and boot.answer.decision.variant and shirt.answer.label != boot.answer.label
    assert results.answers == [None, boot.answer, shirt.answer]
    job = results.job
    assert (job.state, job.inputs, job.done, job.failed, job.name) == ("done", 3, 2, 1, "mine")
    assert job.cost > 0 and job.deadline is not None and not job.late and "answered" in job._repr_html_()
    assert (f"job {job.id}: inputs", 3, 3) in told and (f"job {job.id}: answers", 3, 3) in told
    assert job.id in [one.id for one in client.jobs.list()]
    client.jobs.remove(job)
    with pytest.raises(modelless.NotFound):
        client.jobs.get(job)


def test_arrays_of_an_iterator_are_sent_as_they_come_and_pages_are_read_to_the_end(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    monkeypatch.setattr(_jobs, "INPUTS_AT_ONCE", 7)
    monkeypatch.setattr(_jobs, "MISSING", 10)
    monkeypatch.setattr(_jobs, "PAGE", 6)
    arrays = [np.full((1, 28, 28), at / 20, "float32") for at in range(20)]
    results = client.jobs.run("fashion-tensor", iter(arrays), count=20, timeout=60)
    assert [output.at for output in results] == list(range(20)) and len(results) == 20
    alone = client.query("fashion-tensor", arrays[7]).numpy()
    answer = results.outputs[7].answer
    assert answer is not None and np.allclose(answer.numpy(), alone, atol=1e-4)
    client.jobs.remove(results.job)


def test_the_awaited_client_does_the_same(url: str, boot: Path) -> None:
    async def all_of_it() -> None:
        async with modelless.AsyncClient(url) as client:
            estimate = await client.jobs.estimate("fashion", 1_000, accuracy=0.5)
            assert estimate.variant
            job = await client.jobs.submit("fashion", [("mine", boot), boot.read_bytes()], deadline=timedelta(hours=1))
            job = await client.jobs.wait(job, timeout=60)
            assert job.state == "done"
            outputs: List[JobOutput] = [output async for output in client.jobs.outputs(job)]
            assert [output.name for output in outputs] == ["mine", "1"]
            assert all(output.answer and output.answer.label == "Ankle boot" for output in outputs)
            results = await client.jobs.run("fashion", [boot], timeout=60)
            assert [output.name for output in results] == ["boot.png"]
            for one in (job, results.job):
                await client.jobs.remove(one)

    asyncio.run(all_of_it())


def test_a_job_that_was_not_sent_whole_is_gone_on_with(client: Client, boot: Path) -> None:
    inputs: List[Any] = [boot, boot, PICTURES / "shirt.png"]
    made = client._driver.run(client._core.call("POST", "/v1/jobs", {"task": "fashion", "inputs": 3}))
    first = modelless.Job.of(made)
    assert (first.state, first.received) == ("receiving", 0)
    with pytest.raises(InputError, match="has 3 inputs, and these are 2"):
        client.jobs.send(first, inputs[:2])
    job = client.jobs.wait(client.jobs.send(first.id, inputs), timeout=60)
    assert (job.state, job.done) == ("done", 3)
    assert client.jobs.send(job, inputs).state == "done", "there is nothing to be done any more"
    client.jobs.remove(job)


def test_a_job_is_cancelled_and_what_cannot_be_sent_leaves_none(client: Client, boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {job.id for job in client.jobs.list()}
    monkeypatch.setattr(_jobs, "INPUTS_AT_ONCE", 1)
    with pytest.raises(InputError, match="input 1 of the list: cannot read"):
        client.jobs.submit("fashion", [boot, Path("nowhere.png")])
    with pytest.raises(InputError, match="count is 3, and the iterator gave 2"):
        client.jobs.submit("fashion", iter([boot, boot]), count=3)
    with pytest.raises(InputError, match="gives more"):
        client.jobs.submit("fashion", iter([boot, boot]), count=1)
    with pytest.raises(modelless.GoalsUnreachable) as caught:
        client.jobs.submit("fashion", [boot], accuracy=0.999)
    assert caught.value.nearest is not None
    made = [job for job in client.jobs.list() if job.id not in before]
    assert [job.state for job in made] == ["cancelled"] * 3
    with pytest.raises(InputError, match="no goal of a job"):
        client.jobs.submit("fashion", [boot], latency_ms=5)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (b"bytes", "several inputs"),
        ({"x": 1}, "several inputs"),
        ([], "no inputs"),
        (iter([1]), "count="),
        (7, "no list"),
        ("nowhere", "no folder"),
    ],
)
def test_what_is_no_list_of_inputs_is_refused_before_anything_is_sent(inputs: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        _jobs.Source.of(FORM, inputs, None)


def test_an_answer_outlives_its_task() -> None:
    told = {"at": 0, "name": "x", "answer": [{"label": "<boot>"}], "variant": "v", "device_ms": 1.5, "cost_usd_per_1k": 0.1}
    answer = JobOutput.of(told, "t", "").answer
    assert answer is not None and answer.raw == told["answer"] and answer.decision.variant == "v"
    assert "boot" in repr(answer) and "&lt;boot&gt;" in answer._repr_html_()


def test_inputs_whose_turn_never_came_are_among_the_outputs_of_a_job_that_has_ended(server: Scripted) -> None:
    def page(state: str, places: List[int], following: Any) -> Callable[[socket.socket], bool]:
        outputs = [{"at": at, "name": f"n{at}", "reason": "unreadable", "message": "no picture"} for at in places]
        job = json.loads(_told(state, inputs=7, failed=3))
        return reply(200, json.dumps({"outputs": outputs, "next": following, "job": {**job, "why": "somebody did"}}))

    for state, reason in (("cancelled", "job_cancelled"), ("failed", "job_failed")):
        server.others["GET /v1/jobs/7/outputs"] = _one_after_another(page(state, [1, 2], 3), page(state, [5], None))
        with Client(server.url) as client:
            outputs = list(client.jobs.outputs(7))
        assert [output.at for output in outputs] == list(range(7))
        assert [output.at for output in outputs if output.reason == reason] == [0, 3, 4, 6]
        assert (outputs[3].name, outputs[3].answer) == ("", None)
        assert outputs[3].message == "the job ended before it was its turn (somebody did)"
    # As long as it runs, their turn may come.
    server.others["GET /v1/jobs/7/outputs"] = _one_after_another(page("running", [1, 2], 3), page("running", [5], None))
    with Client(server.url) as client:
        assert [output.at for output in client.jobs.outputs(7)] == [1, 2, 5]


def test_of_a_job_that_was_cancelled_nothing_is_left_out(client: Client) -> None:
    made = client._driver.run(client._core.call("POST", "/v1/jobs", {"task": "fashion", "inputs": 3}))
    job = client.jobs.cancel(made["job"])
    assert [(output.at, output.reason) for output in client.jobs.outputs(job)] == [(at, "job_cancelled") for at in range(3)]
    client.jobs.remove(job)


def test_deadlines_are_lengths_of_time() -> None:
    assert [_jobs.seconds(one) for one in ("90s", "1.5h", "2d", 7, timedelta(minutes=1))] == [90, 5_400, 172_800, 7, 60]
    for wrong in ("", "h", "2 weeks", "x"):
        with pytest.raises(InputError, match="expected seconds"):
            _jobs.seconds(wrong)


def test_names_are_those_that_the_server_takes() -> None:
    assert [_jobs._named(3, value)[0] for value in (Path("a/b.png"), "text", ("mine", 1))] == ["b.png", "3", "mine"]
    for wrong in ("", "x" * 251, "a\nb"):
        with pytest.raises(InputError, match="input 3 of the list: .* cannot be a name"):
            _jobs._named(3, (wrong, 1))


def test_chunks_are_bounded_by_inputs_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jobs, "INPUTS_AT_ONCE", 3)
    source = _jobs.Source.of(FORM, [INPUT] * 8, None)

    def sizes() -> List[int]:
        writer = _jobs.Chunks(FORM, source, {}, list(range(8)))
        chunks = iter(writer.next, None)
        return [len(json.loads(chunk.content)["inputs"]) for chunk in chunks if chunk is not None]

    assert sizes() == [3, 3, 2]
    monkeypatch.setattr(_jobs, "BYTES_AT_ONCE", 160)
    assert sizes() == [2, 2, 2, 2]
    monkeypatch.setattr(_jobs, "BYTES_AT_ONCE", 1)
    assert sizes() == [1] * 8, "one always goes, however large"
    writer = _jobs.Chunks(FORM, source, {}, list(range(8)))
    assert [len(chunks) for chunks in iter(writer.several, [])] == [1] * 8, "and alone"


@pytest.fixture
def server() -> Iterator[Scripted]:
    """A server that answers as it is told."""
    server = Scripted()
    yield server
    server.close()


def _told(state: str, **more: int) -> str:
    return json.dumps({"job": 7, "name": "t", "task": "t", "state": state, "inputs": 2, "received": 0, "done": 0, "failed": 0, **more})


def _one_after_another(*replies: Callable[[socket.socket], bool]) -> Callable[[socket.socket], bool]:
    left = list(replies)
    return lambda connection: (left.pop(0) if len(left) > 1 else left[0])(connection)


def test_what_was_lost_on_its_way_is_sent_again_and_nothing_else(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jobs, "SOON", 0.001)
    none: Dict[str, Any] = {"missing": []}
    server.others["GET /v1/jobs/7/missing"] = _one_after_another(reply(200, '{"missing": [1]}'), reply(200, json.dumps(none)))
    server.others["GET /v1/jobs/7"] = reply(200, _told("receiving"))
    # More often than a client's retries allow: a job's inputs are sent with patience.
    server.replies = [broken, busy(), broken, broken, busy(), broken, reply(200, _told("receiving")), reply(200, _told("running"))]
    with Client(server.url, retries=Retries(attempts=2, pause=0.001, saved=1.0)) as client:
        job = client.jobs.send(7, [INPUT, INPUT])
    assert job.state == "running"
    sent = [one for one in server.queries() if one.target.endswith("/inputs")]
    assert len(sent) == 7 and len({one.body for one in sent}) == 1
    assert [one["at"] for one in json.loads(sent[0].body)["inputs"]] == [1], "the first one had come"
    assert server.queries()[-1].target == "/v1/jobs/7/start"


def test_a_server_that_stays_away_leaves_the_job_for_later(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jobs, "PATIENCE", 0.05)
    server.others["GET /v1/jobs/7/missing"] = reply(200, '{"missing": [0, 1]}')
    server.replies = [reply(201, _told("receiving"))] + [broken] * 50
    with Client(server.url, retries=QUICK) as client:
        with pytest.raises(JobNotSent, match=r"client\.jobs\.send\(7, inputs\)") as caught:
            client.jobs.submit("t", [INPUT, INPUT])
    assert caught.value.job == 7
    assert not [one for one in server.queries() if one.target.endswith("/cancel")], "nothing was lost yet"


@pytest.mark.parametrize("backend", ["blocking", "asyncio", "trio"])
def test_some_requests_with_inputs_are_under_way_at_once(server: Scripted, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(_jobs, "INPUTS_AT_ONCE", 1)
    monkeypatch.setattr(_jobs, "CHUNKS_AT_ONCE", 3)
    together, alone = threading.Barrier(3), threading.Event()

    def received(connection: socket.socket) -> bool:
        try:
            together.wait(10)
        except threading.BrokenBarrierError:
            alone.set()
        return reply(200, _told("receiving"))(connection)

    told: List[int] = []
    more: Any = {"progress": lambda _, sent, size: told.append(sent)}
    server.others["GET /v1/jobs/7/missing"] = _one_after_another(reply(200, '{"missing": [0, 1, 2, 3, 4, 5]}'), reply(200, '{"missing": []}'))
    server.others["POST /v1/jobs/7/inputs"] = received
    server.replies = [reply(201, _told("receiving", inputs=6)), reply(200, _told("running"))]

    async def awaited() -> Any:
        async with modelless.AsyncClient(server.url) as client:
            return await client.jobs.submit("t", [INPUT] * 6, **more)

    if backend == "blocking":
        with Client(server.url) as client:
            job = client.jobs.submit("t", [INPUT] * 6, **more)
    else:
        job = anyio.run(awaited, backend=backend)
    assert job.state == "running" and not alone.is_set() and told == [0, 1, 2, 3, 4, 5, 6]
    sent = [json.loads(one.body)["inputs"][0]["at"] for one in server.queries() if one.target.endswith("/inputs")]
    assert [sorted(sent[:3]), sorted(sent[3:])] == [[0, 1, 2], [3, 4, 5]], "never more than three"


def test_a_place_that_an_iterator_is_beyond_leaves_the_job_for_later(server: Scripted) -> None:
    missing = [reply(200, f'{{"missing": {places}}}') for places in ("[0, 1]", "[0]", "[0]", "[]")]
    server.others["GET /v1/jobs/7/missing"] = _one_after_another(*missing)
    server.others["GET /v1/jobs/7"] = reply(200, _told("receiving"))
    receiving = reply(200, _told("receiving"))
    server.replies = [reply(201, _told("receiving")), receiving, receiving, reply(200, _told("running"))]
    with Client(server.url, retries=QUICK) as client:
        with pytest.raises(JobNotSent, match="input 0 was sent, and the server has not got it") as caught:
            client.jobs.submit("t", iter([INPUT, INPUT]), count=2)
        assert not [one for one in server.queries() if one.target.endswith("/cancel")]
        assert client.jobs.send(caught.value.job, iter([INPUT, INPUT])).state == "running"


def test_a_job_is_made_once_whatever_happens(server: Scripted) -> None:
    server.replies = [broken, reply(201, _told("receiving"))]
    with Client(server.url, retries=QUICK) as client:
        with pytest.raises(modelless.Unreachable):
            client.jobs.submit("t", [INPUT])
    assert len(server.queries()) == 1


def _cancels(server: Scripted) -> int:
    return len([one for one in server.queries() if one.target == "/v1/jobs/7/cancel"])


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("by", ["iterator", "progress", "connection"])
def test_whatever_ends_the_sending_cancels_the_job(server: Scripted, monkeypatch: pytest.MonkeyPatch, kind: Any, by: str) -> None:
    server.others["GET /v1/jobs/7/missing"] = reply(200, '{"missing": [0, 1]}')
    # The last word of who is interrupted is said once, whatever comes of it.
    server.others["POST /v1/jobs/7/cancel"] = broken if kind is not ValueError else reply(200, _told("cancelled"))
    server.replies = [reply(201, _told("receiving")), reply(200, _told("receiving"))]

    def inputs() -> Iterator[bytes]:
        yield INPUT
        if by == "iterator":
            raise kind("mine")
        yield INPUT

    def told(what: str, sent: int, size: int) -> None:
        if by == "progress":
            raise kind("mine")

    with Client(server.url, retries=QUICK) as client:
        send = client._http.send

        def sending(request: Any, **how: Any) -> Any:
            if by == "connection" and request.url.path.endswith("/inputs"):
                raise kind("mine")
            return send(request, **how)

        monkeypatch.setattr(client._http, "send", sending)
        with pytest.raises(kind, match="mine"):
            client.jobs.submit("t", inputs(), count=2, progress=told)
    assert _cancels(server) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("word", ["heard", "unheard"])
def test_an_awaited_call_that_is_cancelled_cancels_its_job(
    server: Scripted, monkeypatch: pytest.MonkeyPatch, backend: str, word: str
) -> None:
    monkeypatch.setattr(_jobs, "LAST_WORD", 5.0 if word == "heard" else 2.0)  # long enough to have been asked, also on a busy machine
    sent = threading.Event()

    def taken(connection: socket.socket) -> bool:
        sent.set()
        return silent(connection)

    server.others["GET /v1/jobs/7/missing"] = reply(200, '{"missing": [0, 1]}')
    server.others["POST /v1/jobs/7/cancel"] = reply(200, _told("cancelled")) if word == "heard" else silent
    server.replies = [reply(201, _told("receiving")), taken]

    async def all_of_it() -> None:
        async with modelless.AsyncClient(server.url) as client:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(client.jobs.submit, "t", [INPUT, INPUT])
                    await anyio.to_thread.run_sync(sent.wait)
                    scope.cancel()
            assert scope.cancelled_caught

    anyio.run(all_of_it, backend=backend)
    assert _cancels(server) == 1


def test_a_job_is_waited_for_through_a_restart_and_no_longer_than_asked(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jobs, "SOON", 0.001)
    running = reply(200, _told("running", done=1))
    server.others["GET /v1/jobs/7"] = _one_after_another(running, broken, broken, broken, busy(), running, reply(200, _told("done", done=2)))
    with Client(server.url, retries=Retries(attempts=1)) as client:
        assert client.jobs.wait(7).done == 2
    server.others["GET /v1/jobs/7"] = running
    with Client(server.url) as client:
        with pytest.raises(Timeout, match="1 of its 2 inputs have; it goes on"):
            client.jobs.wait(7, timeout=0.05)
