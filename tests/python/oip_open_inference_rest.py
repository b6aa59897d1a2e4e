"""The client that is generated from the protocol's own OpenAPI document, unmodified, against the demo: every call that it has.

    python oip_open_inference_rest.py URL PICTURE
"""

import asyncio
import base64
import inspect
import pathlib
import sys

from calls import Calls, same
from open_inference.openapi import InferenceRequest, RequestInput, RequestOutput
from open_inference.openapi.client import AsyncOpenInferenceClient, OpenInferenceClient

URL, PICTURE = sys.argv[1], base64.b64encode(pathlib.Path(sys.argv[2]).read_bytes()).decode()
TASK = "fashion"


def ask(**more):
    return InferenceRequest(inputs=[RequestInput(name="image", shape=[1, 1], datatype="BYTES", data=[PICTURE])], **more)


def is_a_boot(answer, floor=0.0):
    outputs = {output.name: output for output in answer.outputs}
    same((answer.model_name, outputs["label"].data.__root__), (TASK, ["Ankle boot"]))
    same(outputs["scores"].shape, [1, 10])
    assert float(answer.parameters["accuracy"]) >= floor, answer.parameters


def tensors_of(about):
    same((about.name, about.inputs[0].name, about.inputs[0].datatype), (TASK, "image", "BYTES"))
    assert about.versions and all(version.isdigit() for version in about.versions), about.versions


def only_labels(answer):
    same([output.name for output in answer.outputs], ["label"])


async def every_call(calls, name, client):
    """Both clients have the same calls; those of one are awaited."""

    async def call(what, made, then=lambda answer: same(answer, None)):
        async def tried():
            answer = made()
            then(await answer if inspect.isawaitable(answer) else answer)

        await calls.wait(name, what, tried())

    async def refuses(what, made, said):
        try:
            answer = made()
            await answer if inspect.isawaitable(answer) else answer
            verdict = "it was not refused"
        except Exception as error:
            verdict = said in str(error) or f"{type(error).__name__}: {error}"
        calls.say(name, what, verdict)

    about = client.read_model_metadata(TASK)
    version = (await about if inspect.isawaitable(about) else about).versions[0]
    await call("check_server_liveness", client.check_server_liveness)
    await call("check_server_readiness", client.check_server_readiness)
    await call("check_model_readiness", lambda: client.check_model_readiness(TASK))
    await call("check_model_version_readiness", lambda: client.check_model_version_readiness(TASK, version))
    await call("read_server_metadata", client.read_server_metadata, lambda about: same(about.name, "modelless"))
    await call("read_model_metadata", lambda: client.read_model_metadata(TASK), tensors_of)
    await call("read_model_version_metadata", lambda: client.read_model_version_metadata(TASK, version), tensors_of)
    await call("model_infer", lambda: client.model_infer(TASK, request=ask(id="7")), is_a_boot)
    goals = {"accuracy": 0.9, "latency_ms": 4_000.5, "prefer": "cost"}
    await call("model_infer, goals as parameters", lambda: client.model_infer(TASK, request=ask(parameters=goals)),
        lambda answer: is_a_boot(answer, 0.9))
    await call("model_infer, chosen outputs",
        lambda: client.model_infer(TASK, request=ask(outputs=[RequestOutput(name="label")])), only_labels)
    await call("model_version_infer", lambda: client.model_version_infer(TASK, version, request=ask()),
        lambda answer: same(answer.model_version, version))
    await refuses("model_infer, a floor out of reach",
        lambda: client.model_infer(TASK, request=ask(parameters={"accuracy": 0.999})), "no variant reaches this accuracy")
    await refuses("check_model_readiness, an unknown model", lambda: client.check_model_readiness("fashio"), "did you mean")


calls = Calls()
asyncio.run(every_call(calls, "open-inference-openapi", OpenInferenceClient(base_url=URL)))
asyncio.run(every_call(calls, "open-inference-openapi async", AsyncOpenInferenceClient(base_url=URL)))
calls.end()
