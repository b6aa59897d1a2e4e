"""NVIDIA's clients for HTTP, unmodified, against the demo: every call of the protocol that they have.

    python oip_http.py URL PICTURE

Prints one line for each call: CLIENT, CALL, and `ok` or what went wrong, separated by tabs.
"""

import asyncio
import pathlib
import sys

import numpy as np
import tritonclient.http as http
import tritonclient.http.aio as aio
from calls import Calls, found, refused, same

URL, PICTURE = sys.argv[1].removeprefix("http://"), pathlib.Path(sys.argv[2]).read_bytes()
TASK = "fashion"


def ask(module, rows=1, binary=True):
    image = module.InferInput("image", [rows, 1], "BYTES")
    image.set_data_from_numpy(np.array([[PICTURE]] * rows, dtype=np.object_), binary_data=binary)
    return [image]


def is_a_boot(result, rows=1):
    scores, label = result.as_numpy("scores"), result.as_numpy("label")
    assert scores.shape == (rows, 10) and label.shape == (rows, 1), (scores.shape, label.shape)
    assert label[0][0] in (b"Ankle boot", "Ankle boot"), label
    assert abs(float(scores[0].sum()) - 1) < 1e-3, scores
    return result.get_response()


def sync(calls):
    client = http.InferenceServerClient(URL)
    call = lambda name, what: calls.call("tritonclient HTTP", name, what)
    call("is_server_live", lambda: same(client.is_server_live(), True))
    call("is_server_ready", lambda: same(client.is_server_ready(), True))
    call("is_model_ready", lambda: same(client.is_model_ready(TASK), True))
    call("is_model_ready of no model", lambda: same(client.is_model_ready("fashio"), False))
    call("is_model_ready of no version", lambda: same(client.is_model_ready(TASK, "99999"), False))
    call("get_server_metadata", lambda: same(client.get_server_metadata()["name"], "modelless"))
    call("get_model_metadata", lambda: same(client.get_model_metadata(TASK)["inputs"][0]["name"], "image"))
    call("get_model_config", lambda: same(client.get_model_config(TASK)["output"][0]["dims"], [10]))
    call("get_model_repository_index", lambda: same(client.get_model_repository_index()[0]["name"], TASK))
    call("load_model", lambda: client.load_model(TASK))
    call("unload_model", lambda: client.unload_model(TASK))
    call("load_model of what was unloaded", lambda: client.load_model(TASK))
    calls.refuses("tritonclient HTTP", "unload_model of no model", lambda: client.unload_model("fashio"), "fashion")
    call("get_trace_settings", lambda: same(client.get_trace_settings(), {}))
    call("get_trace_settings of a model", lambda: same(client.get_trace_settings(TASK), {}))
    call("get_log_settings", lambda: same(client.get_log_settings(), {}))
    calls.refuses("tritonclient HTTP", "update_trace_settings, which is refused",
        lambda: client.update_trace_settings(TASK, {"trace_level": ["OFF"]}), "MODELLESS_LOG sets")
    calls.refuses("tritonclient HTTP", "update_log_settings, which is refused",
        lambda: client.update_log_settings({"log_verbose_level": 1}), "MODELLESS_LOG sets")
    call("infer, binary", lambda: is_a_boot(client.infer(TASK, ask(http), request_id="7")))
    outputs = lambda binary, **more: [
        http.InferRequestedOutput("scores", binary_data=binary, **more),
        http.InferRequestedOutput("label", binary_data=binary),
    ]
    call("infer, binary in, JSON out", lambda: is_a_boot(client.infer(TASK, ask(http), outputs=outputs(False))))

    def goals():
        said = is_a_boot(client.infer(TASK, ask(http), priority=1, timeout=5_000_000,
            parameters={"accuracy": 0.9, "prefer": "cost", "latency_ms": 4_000.5}))
        assert float(said["parameters"]["accuracy"]) >= 0.9, said
        return said["model_version"]

    call("infer, goals as parameters", goals)
    call("infer, goals in headers", lambda: is_a_boot(client.infer(TASK, ask(http), headers={"modelless-accuracy": "0.9"})))
    call("infer, goals in the query string", lambda: is_a_boot(client.infer(TASK, ask(http), query_params={"accuracy": 0.9})))

    def version():
        first = client.infer(TASK, ask(http), parameters={"model": "cnn_m"}).get_response()["model_version"]
        assert first.isdigit(), first
        same(is_a_boot(client.infer(TASK, ask(http), model_version=first))["model_version"], first)

    call("infer, by version", version)
    for packed in ("gzip", "deflate"):
        call(f"infer, {packed}", lambda: is_a_boot(client.infer(TASK, ask(http, 40), outputs=outputs(True),
            request_compression_algorithm=packed, response_compression_algorithm=packed), 40))

    def classes():
        best = client.infer(TASK, ask(http), outputs=[http.InferRequestedOutput("scores", class_count=2)])
        score, index, label = best.as_numpy("scores")[0][0].decode().split(":")
        same((index, label), ("9", "Ankle boot"))
        assert float(score) > 0.5, score

    call("infer, classification", classes)
    call("infer, 500 rows", lambda: is_a_boot(client.infer(TASK, ask(http, 500)), 500))
    call("async_infer", lambda: is_a_boot(client.async_infer(TASK, ask(http)).get_result()))
    call("get_inference_statistics", lambda: same(
        sum(one["inference_count"] for one in client.get_inference_statistics(TASK)["model_stats"]) > 500, True))
    calls.refuses("tritonclient HTTP", "infer, a floor out of reach",
        lambda: client.infer(TASK, ask(http), parameters={"accuracy": 0.999}), "no variant reaches this accuracy")
    calls.refuses("tritonclient HTTP", "infer, an unknown model", lambda: client.infer("fashio", ask(http)), "did you mean")
    client.close()


async def asynchronous(calls):
    async with aio.InferenceServerClient(URL) as client:
        call = lambda name, what: calls.wait("tritonclient HTTP aio", name, what)

        async def answer(**more):
            return is_a_boot(await client.infer(TASK, ask(http, more.pop("rows", 1)), **more), more.pop("rows", 1))

        yes = lambda got: got
        await call("is_server_live", found(client.is_server_live(), yes, True))
        await call("is_server_ready", found(client.is_server_ready(), yes, True))
        await call("is_model_ready", found(client.is_model_ready(TASK), yes, True))
        await call("get_server_metadata", found(client.get_server_metadata(), lambda got: got["name"], "modelless"))
        await call("get_model_metadata", found(client.get_model_metadata(TASK), lambda got: got["inputs"][0]["name"], "image"))
        await call("get_model_config", found(client.get_model_config(TASK), lambda got: got["output"][0]["dims"], [10]))
        await call("get_model_repository_index", found(client.get_model_repository_index(), lambda got: got[0]["name"], TASK))
        await call("unload_model", client.unload_model(TASK))
        await call("load_model", client.load_model(TASK))
        await call("get_trace_settings", found(client.get_trace_settings(), yes, {}))
        await call("get_trace_settings of a model", found(client.get_trace_settings(TASK), yes, {}))
        await call("get_log_settings", found(client.get_log_settings(), yes, {}))
        await call("update_trace_settings, which is refused",
            refused(client.update_trace_settings(TASK, {"trace_level": ["OFF"]}), "MODELLESS_LOG sets"))
        await call("update_log_settings, which is refused",
            refused(client.update_log_settings({"log_verbose_level": 1}), "MODELLESS_LOG sets"))
        asked = lambda got: sum(one["inference_count"] for one in got["model_stats"]) > 500
        await call("get_inference_statistics", found(client.get_inference_statistics(TASK), asked, True))
        await call("infer, binary", answer())
        await call("infer, goals as parameters", answer(parameters={"accuracy": 0.9}))
        await call("infer, 20 at once", asyncio.gather(*(answer() for _ in range(20))))
        await call("infer, a floor out of reach", refused(client.infer(TASK, ask(http), parameters={"accuracy": 0.999}), "no variant reaches this accuracy"))


calls = Calls()
sync(calls)
asyncio.run(asynchronous(calls))
calls.end()
