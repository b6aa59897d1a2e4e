"""A KServe server with the models that the tests of the engine `remote` need.

    python serve.py HTTP_PORT GRPC_PORT FOLDER_OF_FASHION_MODELS

They do what the files of the same name in ../models do, as far as that means anything on another machine.
"""

import asyncio
import functools
import inspect
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

NUMPY = {
    "FP32": np.float32, "FP16": np.float16, "FP64": np.float64, "INT8": np.int8, "UINT8": np.uint8,
    "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_, "BYTES": np.object_,
}  # fmt: skip


def tensor(name, datatype, *shape):
    return {"name": name, "datatype": datatype, "shape": list(shape)}


class Served(Model):
    def __init__(self, name, inputs, outputs, function):
        super().__init__(name)
        self.inputs, self.outputs, self.function = inputs, outputs, function
        self.ready = True

    def get_input_types(self):
        return self.inputs

    def get_output_types(self):
        return self.outputs

    async def predict(self, payload: InferRequest, headers=None, response_headers=None):
        given = {tensor.name: tensor.as_numpy() for tensor in payload.inputs}
        arrays = [given[i["name"]].astype(NUMPY[i["datatype"]]) for i in self.inputs]
        made = self.function(*arrays)
        if inspect.isawaitable(made):
            made = await made
        outputs, binary = [], bool(payload.use_binary_outputs)
        # In another order than they are described in: names are what counts.
        for about, array in reversed(list(zip(self.outputs, made))):
            output = InferOutput(about["name"], list(array.shape), about["datatype"])
            output.set_data_from_numpy(np.ascontiguousarray(array), binary_data=binary)
            outputs.append(output)
        return InferResponse(payload.id or "1", self.name, outputs, use_binary_outputs=binary)


def picky(length):
    row = int(length.max())
    return [np.ones((len(length), 10), np.float32).reshape(-1, row if row else 10)]


async def slow(rounds):
    """A microsecond a round, for others to be served meanwhile."""
    await asyncio.sleep(min(float(rounds.max()) / 1e6, 600))
    return [rounds]


def ragged(x):
    return [np.argwhere(x == 0).astype(np.int64)]


def main():
    port, grpc_port, models = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    kinds = {"f32": "FP32", "f16": "FP16", "f64": "FP64", "i8": "INT8", "u8": "UINT8", "i32": "INT32", "i64": "INT64", "bool": "BOOL"}
    served = [
        Served("echo", [tensor("x", "FP32", -1, 4)], [tensor("y", "FP32", -1, 4)], lambda x: [x]),
        Served(
            "types",
            [tensor(f"in_{name}", kind, -1, 3) for name, kind in kinds.items()],
            [tensor(f"out_{name}", kind, -1, 3) for name, kind in kinds.items()]
            + [tensor("cast_f32", "FP32", -1, 3), tensor("not_bool", "BOOL", -1, 3)],
            lambda *all: [*all, all[5].astype(np.float32), np.logical_not(all[7])],
        ),
        Served("fixed", [tensor("x", "FP32", 4, 3)], [tensor("y", "FP32", 4)], lambda x: [x.sum(axis=1)]),
        Served("open", [tensor("x", "FP32", -1, -1)], [tensor("y", "FP32", -1, -1)], lambda x: [x]),
        Served("mixes", [tensor("x", "FP32", -1, 3)], [tensor("y", "FP32", 1, 3)], lambda x: [x.sum(axis=0, keepdims=True)]),
        Served("picky", [tensor("length", "INT64", -1)], [tensor("y", "FP32", -1, -1)], picky),
        Served("ragged", [tensor("x", "FP32", -1)], [tensor("y", "INT64", -1, 1)], ragged),
        Served("slow", [tensor("rounds", "INT64", -1)], [tensor("done", "INT64", -1)], slow),
        Served("strings", [tensor("x", "BYTES", -1, 2)], [tensor("y", "BYTES", -1, 2)], lambda x: [x]),
        Served("twice", [tensor("x", "BYTES", -1)], [tensor("y", "BYTES", -1)], lambda x: [x + x]),
    ]
    for name in ("cnn_s", "cnn_m"):
        session = onnxruntime.InferenceSession(str(models / f"{name}.onnx"))
        run = functools.partial(lambda session, x: session.run(None, {"input": x}), session)
        inputs, outputs = [tensor("input", "FP32", -1, 1, 28, 28)], [tensor("logits", "FP32", -1, 10)]
        served.append(Served(name, inputs, outputs, run))
    ModelServer(http_port=port, grpc_port=grpc_port, workers=1, access_log_format=None).start(served)


if __name__ == "__main__":
    main()
