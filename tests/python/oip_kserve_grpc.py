"""KServe's gRPC client, unmodified, against the demo. In a process of its own: it registers the same messages as NVIDIA's.

    python oip_kserve_grpc.py HOST:PORT PICTURE
"""

import asyncio
import pathlib
import sys

import numpy as np
from calls import Calls, same
from kserve import InferInput, InferRequest
from kserve.inference_client import InferenceGRPCClient

ADDRESS, PICTURE = sys.argv[1], pathlib.Path(sys.argv[2]).read_bytes()
TASK = "fashion"


def typed():
    return InferRequest(TASK, [InferInput("image", [1, 1], "BYTES", data=[PICTURE])])


def raw():
    image = InferInput("image", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[PICTURE]], dtype=np.object_), binary_data=True)
    return InferRequest(TASK, [image], parameters={"accuracy": "0.9"})


def is_a_boot(response):
    outputs = {output.name: output for output in response.outputs}
    label = np.asarray(outputs["label"].as_numpy()).reshape(-1)[0]
    assert label in (b"Ankle boot", "Ankle boot"), label
    assert np.asarray(outputs["scores"].as_numpy()).shape == (1, 10)


async def main():
    calls, client = Calls(), InferenceGRPCClient(ADDRESS)

    async def check(what, then):
        then(await what)

    call = lambda name, what, then: calls.wait("kserve gRPC", name, check(what, then))
    yes = lambda answer: same(answer, True)
    await call("is_server_live", client.is_server_live(), yes)
    await call("is_server_ready", client.is_server_ready(), yes)
    await call("is_model_ready", client.is_model_ready(TASK), yes)
    await call("infer, typed", client.infer(typed()), is_a_boot)
    await call("infer, raw, goals as parameters", client.infer(raw()), is_a_boot)
    try:
        request = typed()
        request.parameters = {"accuracy": "0.999"}  # it sends no floats
        await client.infer(request)
        verdict = "it was not refused"
    except Exception as error:
        verdict = "no variant reaches this accuracy" in str(error) or str(error)
    calls.say("kserve gRPC", "infer, a floor out of reach", verdict)
    await client.close()
    calls.end()


asyncio.run(main())
