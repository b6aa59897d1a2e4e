"""KServe's REST client, unmodified, against the demo.

    python oip_kserve_rest.py URL PICTURE
"""

import asyncio
import base64
import pathlib
import sys

import numpy as np
from calls import Calls, same
from kserve import InferInput, InferRequest, RESTConfig
from kserve.inference_client import InferenceRESTClient

URL, PICTURE = sys.argv[1], pathlib.Path(sys.argv[2]).read_bytes()
TASK = "fashion"


def as_json():
    return InferRequest(TASK, [InferInput("image", [1, 1], "BYTES", data=[base64.b64encode(PICTURE).decode()])])


def as_bytes():
    image = InferInput("image", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[PICTURE]], dtype=np.object_), binary_data=True)
    return InferRequest(TASK, [image], parameters={"binary_data_output": True, "accuracy": 0.9})


def is_a_boot(response):
    outputs = {output.name: output for output in response.outputs}
    label = np.asarray(outputs["label"].as_numpy()).reshape(-1)[0]
    assert label in (b"Ankle boot", "Ankle boot"), label
    assert np.asarray(outputs["scores"].as_numpy()).shape == (1, 10)


async def main():
    calls, client = Calls(), InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))

    async def check(what, then):
        then(await what)

    call = lambda name, what, then: calls.wait("kserve REST", name, check(what, then))
    yes = lambda answer: same(answer, True)
    await call("is_server_live", client.is_server_live(URL), yes)
    await call("is_server_ready", client.is_server_ready(URL), yes)
    await call("is_model_ready", client.is_model_ready(URL, TASK), yes)
    await call("infer, JSON", client.infer(URL, as_json(), model_name=TASK), is_a_boot)
    await call("infer, binary, goals as parameters", client.infer(URL, as_bytes(), model_name=TASK), is_a_boot)
    try:
        request = as_json()
        request.parameters = {"accuracy": 0.999}
        await client.infer(URL, request, model_name=TASK)
        verdict = "it was not refused"
    except Exception as error:
        verdict = "no variant reaches this accuracy" in str(error) or str(error)
    calls.say("kserve REST", "infer, a floor out of reach", verdict)
    await client.close()
    calls.end()


asyncio.run(main())
