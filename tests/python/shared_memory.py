"""Tensors in the system's shared memory, by NVIDIA's clients and their `utils.shared_memory`, unmodified, over both protocols.

    python shared_memory.py URL HOST:PORT PICTURE

The server runs on this machine, as the same user, with `--shared-memory`.
"""

import asyncio
import os
import pathlib
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from calls import Calls, same
from tritonclient.utils import serialize_byte_tensor

URL, GRPC, PICTURE = sys.argv[1].removeprefix("http://"), sys.argv[2], pathlib.Path(sys.argv[3]).read_bytes()
SIZE, OUTPUT = 64 << 10, 32 << 10
TASK, TENSOR = "fashion", "fashion-tensor"


class Object:
    """Shared memory of our own, gone at the end."""

    def __init__(self, name):
        self.key = f"/modelless-{os.getpid()}-{name}"
        self.handle = shm.create_shared_memory_region(name, self.key, SIZE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shm.destroy_shared_memory_region(self.handle)


def names_of(status):
    """HTTP tells a list, gRPC a message."""
    return sorted(region["name"] for region in status) if isinstance(status, list) else sorted(status.regions)


def picture(module, memory, offset=0):
    """A picture in shared memory, and where it lies."""
    element = serialize_byte_tensor(np.array([[PICTURE]], dtype=np.object_))
    shm.set_shared_memory_region(memory.handle, [element], offset=offset)
    image = module.InferInput("image", [1, 1], "BYTES")
    image.set_shared_memory("pictures", len(element.item()), offset=offset)
    return image


def into(module, name, region="scores", size=1024, offset=0):
    output = module.InferRequestedOutput(name)
    output.set_shared_memory(region, size, offset=offset)
    return output


def boot(memory, result, name):
    """The scores of a boot, at their place in shared memory."""
    output = result.get_output(name)
    shape = output["shape"] if isinstance(output, dict) else list(output.shape)
    scores = shm.get_contents_as_numpy(memory.handle, np.float32, shape, offset=OUTPUT)
    same((list(shape), int(scores[0].argmax())), ([1, 10], 9))
    assert abs(float(scores.sum()) - 1) < 1e-3, scores


def sync(calls, name, module, client):
    call = lambda what, made: calls.call(name, what, made)
    refuses = lambda what, made, said: calls.refuses(name, what, made, said)
    with Object(f"{module.__name__}-in") as inputs, Object(f"{module.__name__}-out") as outputs:
        call("register_system_shared_memory", lambda: (
            client.register_system_shared_memory("pictures", inputs.key, SIZE),
            client.register_system_shared_memory("scores", outputs.key, SIZE - OUTPUT, offset=OUTPUT)))
        call("get_system_shared_memory_status", lambda: same(
            names_of(client.get_system_shared_memory_status()), ["pictures", "scores"]))
        call("get_system_shared_memory_status, of one", lambda: same(
            names_of(client.get_system_shared_memory_status("scores")), ["scores"]))
        refuses("register_system_shared_memory, a name that is taken",
            lambda: client.register_system_shared_memory("scores", outputs.key, 16), "already")
        refuses("register_system_shared_memory, what is not there",
            lambda: client.register_system_shared_memory("none", "/modelless-none", 16), "there is no shared memory")
        refuses("register_system_shared_memory, more than there is",
            lambda: client.register_system_shared_memory("none", inputs.key, SIZE + 1), "not within")
        call("infer, an input in shared memory", lambda: same(
            client.infer(TASK, [picture(module, inputs)]).as_numpy("label")[0][0], b"Ankle boot"))
        call("infer, an input at an offset", lambda: same(
            client.infer(TASK, [picture(module, inputs, 4096)]).as_numpy("label")[0][0], b"Ankle boot"))
        call("infer, both in shared memory", lambda: boot(outputs, client.infer(
            TASK, [picture(module, inputs)], outputs=[into(module, "scores")]), "scores"))

        def goals():
            asked = [into(module, "scores"), module.InferRequestedOutput("label")]
            result = client.infer(TASK, [picture(module, inputs)], outputs=asked, parameters={"accuracy": 0.9})
            boot(outputs, result, "scores")
            same(result.as_numpy("label")[0][0], b"Ankle boot")

        call("infer, one output in shared memory and one not, goals as parameters", goals)

        def numbers():
            shm.set_shared_memory_region(inputs.handle, [np.zeros((2, 1, 28, 28), dtype=np.float32)])
            about = client.get_model_metadata(TENSOR)
            about = about if isinstance(about, dict) else {
                "inputs": [{"name": about.inputs[0].name}], "outputs": [{"name": about.outputs[0].name}]}
            tensor = module.InferInput(about["inputs"][0]["name"], [2, 1, 28, 28], "FP32")
            tensor.set_shared_memory("pictures", 2 * 28 * 28 * 4)
            there = about["outputs"][0]["name"]
            client.infer(TENSOR, [tensor], outputs=[into(module, there)])
            logits = shm.get_contents_as_numpy(outputs.handle, np.float32, [2, 10], offset=OUTPUT)
            same((logits[0] == logits[1]).all(), True)
            assert np.abs(logits).max() > 0, logits

        call("infer, rows of numbers", numbers)
        refuses("infer, beyond the region", lambda: client.infer(TASK, [picture(module, inputs)],
            outputs=[into(module, "scores", offset=SIZE)]), "not within the region")
        refuses("infer, no room for the output", lambda: client.infer(TASK, [picture(module, inputs)],
            outputs=[into(module, "scores", size=8)]), "room for 8")
        call("unregister_system_shared_memory", lambda: client.unregister_system_shared_memory("pictures"))
        refuses("infer, from what is not registered",
            lambda: client.infer(TASK, [picture(module, inputs)]), "there is no region")
        call("unregister_system_shared_memory, all", lambda: (
            client.unregister_system_shared_memory(), same(names_of(client.get_system_shared_memory_status()), [])))
    call("get_cuda_shared_memory_status", lambda: same(names_of(client.get_cuda_shared_memory_status()), []))
    call("unregister_cuda_shared_memory", client.unregister_cuda_shared_memory)
    client.close()


async def asynchronous(calls, name, module, aio, address):
    async with aio.InferenceServerClient(address) as client:
        call = lambda what, made: calls.wait(name, what, made)
        with Object(f"{module.__name__}-aio") as memory:
            async def both():
                result = await client.infer(TASK, [picture(module, memory)], outputs=[into(module, "scores", "pictures", offset=OUTPUT)])
                boot(memory, result, "scores")

            async def status():
                same(names_of(await client.get_system_shared_memory_status()), ["pictures"])

            await call("register_system_shared_memory", client.register_system_shared_memory("pictures", memory.key, SIZE))
            await call("get_system_shared_memory_status", status())
            await call("infer, both in shared memory", both())
            await call("unregister_system_shared_memory", client.unregister_system_shared_memory("pictures"))


calls = Calls()
sync(calls, "tritonclient HTTP shared memory", http, http.InferenceServerClient(URL))
sync(calls, "tritonclient gRPC shared memory", grpc, grpc.InferenceServerClient(GRPC))
asyncio.run(asynchronous(calls, "tritonclient HTTP aio shared memory", http, http_aio, URL))
asyncio.run(asynchronous(calls, "tritonclient gRPC aio shared memory", grpc, grpc_aio, GRPC))
calls.end()
