"""The client that is generated from the protocol's own `.proto` file, unmodified, against the demo: every call that it has. In a
process of its own: it registers the same messages as NVIDIA's and KServe's.

    python oip_open_inference_grpc.py HOST:PORT PICTURE
"""

import pathlib
import struct
import sys

import grpc
from calls import Calls, same
from open_inference.grpc import protocol
from open_inference.grpc.service import GRPCInferenceServiceStub

ADDRESS, PICTURE = sys.argv[1], pathlib.Path(sys.argv[2]).read_bytes()
TASK = "fashion"
CLIENT = "open-inference-grpc"


def ask(raw=False, parameters=None, **more):
    request = protocol.ModelInferRequest(model_name=TASK, **more)
    image = request.inputs.add(name="image", datatype="BYTES", shape=[1, 1])
    if raw:
        request.raw_input_contents.append(struct.pack("<I", len(PICTURE)) + PICTURE)
    else:
        image.contents.bytes_contents.append(PICTURE)
    for name, value in (parameters or {}).items():
        # The protocol has no floats here.
        kind = "int64_param" if isinstance(value, int) else "string_param"
        setattr(request.parameters[name], kind, value)
    return request


def typed_boot(answer):
    outputs = {output.name: output for output in answer.outputs}
    same(list(outputs["label"].contents.bytes_contents), [b"Ankle boot"])
    scores = list(outputs["scores"].contents.fp32_contents)
    assert len(scores) == 10 and abs(sum(scores) - 1) < 1e-3, scores
    assert answer.model_version.isdigit(), answer.model_version


def raw_boot(answer):
    at = [output.name for output in answer.outputs].index("label")
    same(answer.raw_output_contents[at][4:], b"Ankle boot")


def main():
    calls, channel = Calls(), grpc.insecure_channel(ADDRESS)
    client = GRPCInferenceServiceStub(channel)
    call = lambda name, made, then: calls.call(CLIENT, name, lambda: then(made()))
    version = client.ModelMetadata(protocol.ModelMetadataRequest(name=TASK)).versions[0]
    call("ServerLive", lambda: client.ServerLive(protocol.ServerLiveRequest()), lambda said: same(said.live, True))
    call("ServerReady", lambda: client.ServerReady(protocol.ServerReadyRequest()), lambda said: same(said.ready, True))
    call("ModelReady", lambda: client.ModelReady(protocol.ModelReadyRequest(name=TASK)), lambda said: same(said.ready, True))
    call("ModelReady, of a version", lambda: client.ModelReady(protocol.ModelReadyRequest(name=TASK, version=version)),
        lambda said: same(said.ready, True))
    call("ServerMetadata", lambda: client.ServerMetadata(protocol.ServerMetadataRequest()),
        lambda said: same(said.name, "modelless"))
    call("ModelMetadata", lambda: client.ModelMetadata(protocol.ModelMetadataRequest(name=TASK)),
        lambda said: same((said.inputs[0].name, list(said.inputs[0].shape)), ("image", [-1, 1])))
    call("ModelInfer, typed", lambda: client.ModelInfer(ask(id="7")), typed_boot)
    call("ModelInfer, raw", lambda: client.ModelInfer(ask(raw=True)), raw_boot)
    goals = {"accuracy": "0.9", "latency_ms": 4_000, "prefer": "cost"}
    call("ModelInfer, goals as parameters", lambda: client.ModelInfer(ask(parameters=goals)), typed_boot)
    call("ModelInfer, by version", lambda: client.ModelInfer(ask(model_version=version)),
        lambda said: same(said.model_version, version))
    calls.refuses(CLIENT, "ModelInfer, a floor out of reach",
        lambda: client.ModelInfer(ask(parameters={"accuracy": "0.999"})), "no variant reaches this accuracy")
    channel.close()
    calls.end()


main()
