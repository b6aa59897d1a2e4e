"""NVIDIA's clients for gRPC, unmodified, against the demo: every call of the protocol that they have, and streaming.

    python oip_grpc.py HOST:PORT PICTURE
"""

import asyncio
import pathlib
import queue
import sys

import grpc as plain
import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as aio
from calls import Calls, found, refused, same

ADDRESS, PICTURE = sys.argv[1], pathlib.Path(sys.argv[2]).read_bytes()
TASK = "fashion"


def ask(rows=1):
    image = grpc.InferInput("image", [rows, 1], "BYTES")
    image.set_data_from_numpy(np.array([[PICTURE]] * rows, dtype=np.object_))
    return [image]


def is_a_boot(result, rows=1):
    scores, label = result.as_numpy("scores"), result.as_numpy("label")
    assert scores.shape == (rows, 10) and label.shape == (rows, 1), (scores.shape, label.shape)
    assert label[0][0] in (b"Ankle boot", "Ankle boot"), label
    return result.get_response()


def sync(calls):
    client = grpc.InferenceServerClient(ADDRESS)
    call = lambda name, what: calls.call("tritonclient gRPC", name, what)
    call("is_server_live", lambda: same(client.is_server_live(), True))
    call("is_server_ready", lambda: same(client.is_server_ready(), True))
    call("is_model_ready", lambda: same(client.is_model_ready(TASK), True))
    call("is_model_ready of no model", lambda: same(client.is_model_ready("fashio"), False))
    call("is_model_ready of no version", lambda: same(client.is_model_ready(TASK, "99999"), False))
    call("get_server_metadata", lambda: same(client.get_server_metadata().name, "modelless"))
    call("get_model_metadata", lambda: same(client.get_model_metadata(TASK).inputs[0].name, "image"))
    call("get_model_config", lambda: same(list(client.get_model_config(TASK).config.output[0].dims), [10]))
    call("get_model_repository_index", lambda: same(client.get_model_repository_index().models[0].name, TASK))
    call("load_model", lambda: client.load_model(TASK))
    call("unload_model", lambda: client.unload_model(TASK))
    call("load_model of what was unloaded", lambda: client.load_model(TASK))
    calls.refuses("tritonclient gRPC", "unload_model of no model", lambda: client.unload_model("fashio"), "fashion")
    call("get_system_shared_memory_status", lambda: client.get_system_shared_memory_status())
    call("get_cuda_shared_memory_status", lambda: client.get_cuda_shared_memory_status())
    call("get_trace_settings", lambda: client.get_trace_settings())
    call("get_log_settings", lambda: client.get_log_settings())
    calls.refuses("tritonclient gRPC", "update_trace_settings, which is refused",
        lambda: client.update_trace_settings(TASK, {"trace_level": ["OFF"]}), "MODELLESS_LOG sets")
    calls.refuses("tritonclient gRPC", "update_log_settings, which is refused",
        lambda: client.update_log_settings({"log_verbose_level": 1}), "MODELLESS_LOG sets")
    call("infer", lambda: is_a_boot(client.infer(TASK, ask(), request_id="7")))

    def goals():
        said = is_a_boot(client.infer(TASK, ask(), priority=1, timeout=5_000_000,
            parameters={"accuracy": 0.9, "prefer": "cost", "latency_ms": 4_000.5}))
        assert said.parameters["accuracy"].double_param >= 0.9, said

    call("infer, goals as parameters", goals)
    call("infer, goals in metadata", lambda: is_a_boot(client.infer(TASK, ask(), headers={"modelless-accuracy": "0.9"})))

    def version():
        first = client.infer(TASK, ask(), parameters={"model": "cnn_m"}).get_response().model_version
        assert first.isdigit(), first
        same(is_a_boot(client.infer(TASK, ask(), model_version=first)).model_version, first)

    call("infer, by version", version)
    for packed in ("gzip", "deflate"):
        call(f"infer, {packed}", lambda: is_a_boot(client.infer(TASK, ask(40), compression_algorithm=packed), 40))

    def classes():
        best = client.infer(TASK, ask(), outputs=[grpc.InferRequestedOutput("scores", class_count=2)])
        same(best.as_numpy("scores")[0][0].decode().split(":")[1:], ["9", "Ankle boot"])

    call("infer, classification", classes)
    call("infer, 500 rows", lambda: is_a_boot(client.infer(TASK, ask(500)), 500))

    def callback():
        done = queue.Queue()
        client.async_infer(TASK, ask(), callback=lambda result, error: done.put((result, error)))
        result, error = done.get(timeout=30)
        assert error is None, error
        is_a_boot(result)

    call("async_infer", callback)

    def stream():
        done = queue.Queue()
        client.start_stream(callback=lambda result, error: done.put((result, error)))
        for number in range(20):
            client.async_stream_infer(TASK, ask(), request_id=str(number))
        client.async_stream_infer(TASK, ask(), request_id="no", parameters={"accuracy": 0.999})
        for number in range(20):
            result, error = done.get(timeout=30)
            assert error is None, error
            same(is_a_boot(result).id, str(number))
        _, error = done.get(timeout=30)
        assert "no variant reaches this accuracy" in str(error), error
        client.stop_stream()

    call("async_stream_infer", stream)
    call("get_inference_statistics", lambda: same(
        sum(one.inference_count for one in client.get_inference_statistics(TASK).model_stats) > 500, True))
    calls.refuses("tritonclient gRPC", "infer, a floor out of reach",
        lambda: client.infer(TASK, ask(), parameters={"accuracy": 0.999}), "no variant reaches this accuracy")
    calls.refuses("tritonclient gRPC", "infer, an unknown model", lambda: client.infer("fashio", ask()), "did you mean")
    client.close()


async def asynchronous(calls):
    async with aio.InferenceServerClient(ADDRESS) as client:
        call = lambda name, what: calls.wait("tritonclient gRPC aio", name, what)

        async def answer(**more):
            is_a_boot(await client.infer(TASK, ask(), **more))

        yes = lambda got: got
        await call("is_server_live", found(client.is_server_live(), yes, True))
        await call("is_server_ready", found(client.is_server_ready(), yes, True))
        await call("is_model_ready", found(client.is_model_ready(TASK), yes, True))
        await call("get_server_metadata", found(client.get_server_metadata(), lambda got: got.name, "modelless"))
        await call("get_model_metadata", found(client.get_model_metadata(TASK), lambda got: got.inputs[0].name, "image"))
        await call("get_model_config", found(client.get_model_config(TASK), lambda got: list(got.config.output[0].dims), [10]))
        await call("get_model_repository_index", found(client.get_model_repository_index(), lambda got: got.models[0].name, TASK))
        await call("unload_model", client.unload_model(TASK))
        await call("load_model", client.load_model(TASK))
        asked = lambda got: sum(one.inference_count for one in got.model_stats) > 500
        await call("get_inference_statistics", found(client.get_inference_statistics(TASK), asked, True))
        await call("infer", answer())
        await call("infer, goals as parameters", answer(parameters={"accuracy": 0.9}))
        await call("infer, 20 at once", asyncio.gather(*(answer() for _ in range(20))))

        async def stream():
            async def requests():
                for number in range(5):
                    yield {"model_name": TASK, "inputs": ask(), "request_id": str(number)}

            numbers = []
            async for result, error in client.stream_infer(requests()):
                assert error is None, error
                numbers.append(is_a_boot(result).id)
            same(numbers, [str(number) for number in range(5)])

        await call("stream_infer", stream())

        await call("infer, a floor out of reach", refused(client.infer(TASK, ask(), parameters={"accuracy": 0.999}), "no variant reaches this accuracy"))


def health(calls):
    """`grpc.health.v1` as any probe asks: the message has one field, a string, which is empty."""
    channel = plain.insecure_channel(ADDRESS)
    path = "/grpc.health.v1.Health/"
    calls.call("grpcio", "Health/Check", lambda: same(channel.unary_unary(path + "Check")(b""), b"\x08\x01"))
    name = b"\x0a\x1einference.GRPCInferenceService"
    calls.call("grpcio", "Health/Check of the service", lambda: same(channel.unary_unary(path + "Check")(name), b"\x08\x01"))
    watched = channel.unary_stream(path + "Watch")(b"")
    calls.call("grpcio", "Health/Watch", lambda: same(next(watched), b"\x08\x01"))
    watched.cancel()
    channel.close()


calls = Calls()
sync(calls)
asyncio.run(asynchronous(calls))
health(calls)
calls.end()
